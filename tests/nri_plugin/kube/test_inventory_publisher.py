"""Another program writes the agent's fields: when the agent yields, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from aiohttp import web

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from nri_plugin.kube.inventory_publisher import (
    CONTEST_S,
    CONTEST_WRITES,
    Contest,
    InventoryPublisher,
    other_writer,
)
from nri_plugin.policy import kube_objects
from nri_plugin.policy.gpu_modes import GpuModes, Mode, Offer
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.totals import Entry
from nri_plugin.readiness import Readiness
from tests.kube.api_server import client_of, json
from tests.nri_plugin.kube.test_reports import Server, during
from tests.nri_plugin.objects import parts, settings
from tests.support import Clock
from tests.virtual_time import Loop, now

GPU = Gpu("GPU-0", 0, 1 << 30)


def publisher(
    kube: Kube, clock: Callable[[], float] | None = None, modes: GpuModes | None = None
) -> InventoryPublisher:
    clock = clock or Clock()
    agent = parts(settings(node_name="node-1"), readiness=Readiness(clock))
    return InventoryPublisher(kube, agent, modes or GpuModes(Offer()), clock)


class Fought(Contest):
    """The agent's Contest for a field with another program, with a clock that the test sets."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)

    def write(self, wanted: str, version: str) -> bool:
        may = self.may_write(wanted, version)
        if may:
            self.written(wanted, version)
        return may

    def fight(self, every_s: float, rounds: int) -> list[bool]:
        """Try to write the same state in each round, after another program has overwritten it.
        Return which writes were allowed."""
        may = []
        for number in range(rounds):
            may.append(self.write("80Gi", f"{self.clock.seconds}-{number}"))
            self.clock.seconds += every_s
        return may


def test_a_field_in_a_lasting_contest_is_left_to_the_other_client() -> None:
    contest = Fought()
    assert not contest.lasts
    assert contest.fight(1, CONTEST_WRITES + 2) == [True] * 5 + [False] * 2
    assert contest.lasts
    contest.clock.seconds += CONTEST_S
    assert contest.may_write("80Gi", "x"), "it is tried again"
    assert contest.lasts, "and not yet known to be over"
    contest.clock.seconds += CONTEST_S
    assert not contest.lasts
    contest.fight(1, CONTEST_WRITES + 1)
    contest.clock.seconds += CONTEST_S
    contest.fight(1, 2)  # the agent writes, the other program reverts once: the contest lasts
    contest.clock.seconds += CONTEST_S - 2
    assert contest.lasts


def test_what_is_a_contest_and_what_is_none() -> None:
    """Rare overwrites, as by a kubelet that starts, are no contest. Nor are new values, events that
    arrive late, or one overwrite after which all writes of the agent fail."""
    contest = Fought()
    longest_s = CONTEST_S / (CONTEST_WRITES - 1)
    assert all(contest.fight(longest_s + 1, 50))
    assert all(contest.write(f"{n}Gi", str(n)) for n in range(50))
    assert all(contest.write("80Gi", "the same") for _ in range(50))
    assert all(contest.may_write("80Gi", f"unrelated {n}") for n in range(50))
    assert not contest.lasts
    contest = Fought()
    contest.fight(longest_s, CONTEST_WRITES + 1)
    assert contest.lasts


@pytest.mark.parametrize("stores_conditions", [True, False])
async def test_the_device_is_written_as_the_api_server_stores_it(stores_conditions: bool) -> None:
    """A Device without a GPU has no conditions, and older CRDs store none."""
    asked: list[tuple[str, bool]] = []
    stored: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        if "/devices" in request.path:
            asked.append((request.method, kube_objects.has_conditions(body)))
            for each in body["spec"]["devices"] if not stores_conditions else ():
                each.pop("conditions", None)
            stored.update(body, metadata={"name": "n", "resourceVersion": str(len(asked))})
        return json(body)

    async with client_of(answer) as kube:
        agent = publisher(kube)
        inventory = agent._parts.inventory
        inventory.problem = None
        agent.node.observed({"metadata": {"name": "node-1", "uid": "u"}})
        for gpus in ((), (GPU,), (), (GPU,)):
            inventory.seen = gpus
            assert await agent._mend() is bool(gpus or asked)
            agent.device.raw = {**stored}
    assert asked == [("POST", True), ("PATCH", False), ("PATCH", stores_conditions)]


@pytest.mark.usefixtures("loop_factory")
@pytest.mark.parametrize("loop_factory", [Loop])
@pytest.mark.parametrize(("status", "pause_s"), [(409, 0.5), (500, 5.0)])
async def test_writes_that_the_api_server_rejects_are_no_contest(
    status: int, pause_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node's resourceVersion changes although each write of the agent fails, because other
    programs such as the kubelet write the node."""
    server = Server(*[status] * 100)
    agent = publisher(cast(Kube, server), now)
    monkeypatch.setattr(agent, "_query_gpus", lambda: None)

    def known() -> bool:
        of_node = {"capacity": {names.RESOURCE_CORE: "100"}}
        agent.node.raw = {"metadata": {"resourceVersion": str(now())}, "status": of_node}
        return now() >= 3

    await during(100, agent.run(known))
    body = {"status": {"capacity": {names.RESOURCE_CORE: "0"}}}
    assert server.sent[:10] == [(3 + n * (pause_s + 1), "patch status 0", body) for n in range(10)]
    assert ["not published" in each for each in caplog.messages] == [True]
    assert agent._contest() is None


async def test_the_node_of_a_ready_agent_gets_the_label_for_isolation() -> None:
    server, label = Server(), kube_objects.isolates()
    agent = publisher(cast(Kube, server))
    readiness = agent._parts.readiness
    for readiness.node, labels in (("no",), {}), ((), label["metadata"]["labels"]), ((), {}):
        readiness.session = None
        agent.node.observed({"metadata": {"name": "node-1", "uid": "u", "labels": labels}})
        assert await agent._mend() is (labels == {} and not readiness.problems)
    assert (agent.node_uid, [body for *_, body in server.sent]) == ("u", [label])
    agent.node.listed(set())
    assert not await agent._mend(), "there is no node"


def test_the_other_writer_has_a_name() -> None:
    writes = {"koord-manager": "devices", "koordlet": "devices", "gpuslice-agent": "devices"}
    fields = [
        {"manager": by, "time": f"2026-01-01T00:00:0{n}Z", "fieldsV1": {f"f:{field}": {}}}
        for n, (by, field) in enumerate([*writes.items(), ("kubelet", "conditions")])
    ]
    assert other_writer({"metadata": {"managedFields": fields}}) == "koordlet"
    assert other_writer({"metadata": {}}) == ""


def test_a_node_of_another_device_plugin_is_not_ours() -> None:
    """The node offers nvidia.com/gpu. An agent that serves a device plugin (--whole-gpus) takes the
    resource for its own. Any other agent reports a conflict."""
    raw = {
        "metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "true"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }
    for offer in (Offer(any=True), Offer()):
        modes = GpuModes(offer)
        status = publisher(cast(Any, None), modes=modes)
        status._note(kube_objects.node(raw))
        found = status._with_mode(Entry(GPU, healthy=True))
        conflict = modes.conflict("node-1") or ""
        assert found.offered is offer.any and bool(conflict) is not offer.any
    assert found.mode is Mode.EXCLUDED
    assert "(status.allocatable of the node has nvidia.com/gpu: 8): must be one" in conflict
    assert "; kubectl label node node-1 " in conflict
