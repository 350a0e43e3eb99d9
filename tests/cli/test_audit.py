"""`gpuslice audit`: findings of the agents' metrics, and of Events without the right to these."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuslice.cli import audit, connecting
from gpuslice.contract import names
from gpuslice.kube.access import Access
from nri_plugin.metrics import Metrics
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


async def test_a_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuslice.cli.cluster._agent", lambda _: None)
    async with client_of(served()) as kube:
        found = await audit.read(kube, [])
    assert found == audit.Report(unanswered={"node-0000": "no agent runs there"}, asked=1)


def _event(node: str) -> dict[str, Any]:
    about = {"namespace": "ns", "name": "p"}
    note = 'container "main": pid 1 holds\n1 MiB'
    return {"reportingInstance": node, "regarding": about, "note": note}


async def test_without_portforward_events_are_the_findings() -> None:
    events = [_event("node-0000"), _event("other")]
    async with client_of(served(may_forward=False, events=events)) as kube:
        found = await audit.read(kube, [])
    (only,) = found.findings
    assert only == audit.Found("node-0000", "ns", "p", "main", "event", "pid 1 holds 1 MiB")
    (notice,) = found.notices
    assert names.VIEWER in notice and found.unanswered == {}


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
        return audit.Report(findings, {"node-1": "gone"}, ["a notice"], asked)

    monkeypatch.setattr(audit, "_read", read)
    monkeypatch.setattr(connecting, "_access", lambda _: Access("https://x"))
    assert audit.main(["-o", output], "gpuslice") == (1 if findings else 2 if asked == 1 else 0)
    shown = capsys.readouterr()
    assert "node node-1 did not answer: gone" in shown.err and "a notice" in shown.err
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
