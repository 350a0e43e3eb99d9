"""`gpuslice audit`: findings of the agents' metrics."""

from __future__ import annotations

import json

import pytest

from gpuslice.cli import audit, connecting
from gpuslice.kube.access import Access
from nri_plugin.metrics import Metrics
from tests.cli.objects import devices
from tests.cli.served import served
from tests.kube.api_server import client_of


def _page(*values: float) -> bytes:
    metrics = Metrics()
    for number, value in enumerate(values):
        metrics.audit_findings.labels("ns", f"p{number}", "main", "covered").set(value)
    return metrics.render()


def _found(number: int, state: str) -> audit.Found:
    return audit.Found("node-0000", "ns", f"p{number}", "main", "covered", state)


async def test_findings_are_of_the_agents_metrics() -> None:
    async with client_of(served(body=_page(1, 0))) as kube:
        found = await audit.read(kube, [])
        assert found == audit.Report([_found(0, "now"), _found(1, "earlier")], asked=1)
        with pytest.raises(LookupError, match="NODE: invalid value x: must be a node with"):
            await audit.read(kube, ["x"])
    async with client_of(served(body=_page())) as kube:
        assert await audit.read(kube, ["node-0000"]) == audit.Report(asked=1)


@pytest.mark.parametrize(
    ("nodes", "no_claims", "status", "text"),
    [
        (0, 0, 2, "no node has a Device object or a ResourceSlice of gpuslice"),
        (0, 403, 2, "no nodes of claims: needs list resourceslices, resourceclaims"),
        (1, 403, 0, "no nodes of claims: needs list resourceslices, resourceclaims"),
    ],
)
def test_nodes_that_cannot_be_listed_are_said(
    nodes: int,
    no_claims: int,
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cluster without nodes would look like one without findings."""
    monkeypatch.setattr("tests.cli.served.devices", lambda: devices(nodes))

    async def read(*_: object) -> audit.Report:
        async with client_of(served(body=_page(), no_claims=no_claims)) as kube:
            return await audit.read(kube, [])

    monkeypatch.setattr(audit, "_read", read)
    monkeypatch.setattr(connecting, "_access", lambda _: Access("https://x"))
    assert audit.main([], "gpuslice") == status
    shown = capsys.readouterr()
    assert shown.err.startswith(f"gpuslice audit: {text}")
    assert shown.out == "no findings on 1 of 1 nodes\n" * nodes


async def test_a_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuslice.cli.cluster._agent", lambda _: None)
    async with client_of(served()) as kube:
        found = await audit.read(kube, [])
    assert found == audit.Report(unanswered={"node-0000": "no agent runs there"}, asked=1)


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("asked", [1, 3], ids=["none answers", "two answer"])
@pytest.mark.parametrize("findings", [[], [_found(0, "now")]], ids=["none", "one"])
def test_the_exit_status_and_what_is_printed(
    findings: list[audit.Found],
    asked: int,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def read(*_: object) -> audit.Report:
        return audit.Report(findings, {"node-1": "gone"}, asked)

    monkeypatch.setattr(audit, "_read", read)
    monkeypatch.setattr(connecting, "_access", lambda _: Access("https://x"))
    assert audit.main(["-o", output], "gpuslice") == (1 if findings else 2 if asked == 1 else 0)
    shown = capsys.readouterr()
    assert "node node-1 did not answer: gone" in shown.err
    if output == "json":
        document = json.loads(shown.out)
        assert [each["pod"] for each in document["findings"]] == ["p0"] * len(findings)
        assert document["unanswered"] == {"node-1": "gone"}
    elif findings:
        head, row = shown.out.splitlines()
        assert head == "NODE       NAMESPACE  POD  CONTAINER  FINDING  STATE"
        assert row.split() == ["node-0000", "ns", "p0", "main", "covered", "now"]
    else:
        assert shown.out == f"no findings on {asked - 1} of {asked} nodes\n"
