"""A second writer of the same fields: when the agent yields, and which writer it names."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
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
from tests.kube.api_server import client_of, refuse
from tests.nri_plugin.objects import parts, settings
from tests.support import Clock


def publisher(kube: Kube, modes: GpuModes, clock: Clock) -> InventoryPublisher:
    return InventoryPublisher(
        kube, parts(settings(node_name="node-1"), readiness=Readiness(clock)), modes, clock
    )


def write(contest: Contest, wanted: str, version: str) -> bool:
    may = contest.may_write(wanted, version)
    if may:
        contest.written(wanted, version)
    return may


def fight(contest: Contest, clock: Clock, every_s: float, rounds: int) -> list[bool]:
    """The agent's desired state stays the same, and the object is overwritten each time."""
    may = []
    for number in range(rounds):
        may.append(write(contest, "80Gi", f"{clock.seconds}-{number}"))
        clock.seconds += every_s
    return may


def test_a_field_in_a_lasting_contest_is_left_to_the_other_client() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert not contest.lasts
    assert fight(contest, clock, 1, CONTEST_WRITES + 2) == [True] * CONTEST_WRITES + [False] * 2
    assert contest.lasts
    clock.seconds += CONTEST_S
    assert contest.may_write("80Gi", "x"), "it is tried again"
    assert contest.lasts, "and not yet known to be over"
    clock.seconds += CONTEST_S
    assert not contest.lasts


def test_a_kubelets_writes_at_its_starts_are_no_contest() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert all(fight(contest, clock, CONTEST_S / (CONTEST_WRITES - 1) + 1, 50))
    assert not contest.lasts


def test_other_values_and_late_events_are_no_contest() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert all(write(contest, f"{n}Gi", str(n)) for n in range(50))
    assert all(write(contest, "80Gi", "the same") for _ in range(50))


def test_a_contest_that_continues_is_a_lasting_one() -> None:
    clock = Clock()
    contest = Contest(clock)
    for _ in range(20):
        fight(contest, clock, CONTEST_S / (2 * CONTEST_WRITES), CONTEST_WRITES)
    assert contest.lasts


def test_a_revert_counts_once_however_often_the_agents_answer_to_it_fails() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert write(contest, "80Gi", "1")
    assert all(contest.may_write("80Gi", f"unrelated {n}") for n in range(50))
    assert not contest.lasts


def test_writes_that_the_api_server_rejects_are_no_contest() -> None:
    """Other programs, such as the kubelet, write the node meanwhile."""
    clock, asked = Clock(), list[str]()
    status: dict[str, Any] = {"capacity": {names.RESOURCE_CORE: "100"}}

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        return refuse(500, "InternalError")

    async def scene() -> InventoryPublisher:
        async with client_of(answer) as kube:
            agent = publisher(kube, GpuModes(Offer()), clock)
            for number in range(2 * CONTEST_WRITES):
                clock.seconds += 1
                metadata = {"name": "node-1", "resourceVersion": str(number)}
                agent.node.observed({"metadata": metadata, "status": status})
                with pytest.raises(KubeError):
                    await agent._mend()
            return agent

    agent = asyncio.run(scene())
    assert asked == ["PATCH /api/v1/nodes/node-1/status"] * 2 * CONTEST_WRITES
    assert agent._contest() is None


def test_the_other_writer_has_a_name() -> None:
    def entry(manager: str, at: str, field: str) -> dict[str, object]:
        return {"manager": manager, "time": at, "fieldsV1": {"f:spec": {field: {}}}}

    fields = [
        entry("koord-manager", "2026-01-01T00:00:01Z", "f:devices"),
        entry("koordlet", "2026-01-01T00:00:02Z", "f:devices"),
        entry("gpuslice-agent", "2026-01-01T00:00:03Z", "f:devices"),
        entry("kubelet", "2026-01-01T00:00:04Z", "f:conditions"),
    ]
    assert other_writer({"metadata": {"managedFields": fields}}) == "koordlet"
    assert other_writer({"metadata": {}}) == ""


@pytest.mark.parametrize("offer", [Offer(), Offer(any=True)])
def test_a_node_of_another_device_plugin_is_not_ours(offer: Offer) -> None:
    """An agent that has a plugin of its own sees its own resource there."""
    modes = GpuModes(offer)
    status = publisher(cast(Any, None), modes, Clock())
    raw = {
        "metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "true"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    }
    status._note(kube_objects.node(raw))
    found = status._with_mode(Entry(Gpu("GPU-0", 0, 1 << 30), healthy=True))
    if offer:
        assert found.offered and modes.conflict("node-1") is None
        return
    assert found.mode is Mode.EXCLUDED and not found.offered
    assert modes.conflict("node-1") == (
        "another program allocates this node's GPUs (status.allocatable of the node has"
        " nvidia.com/gpu: 8): must be one component only; kubectl label node node-1"
        " nvidia.com/gpu.deploy.device-plugin=false nvidia.com/gpu.deploy.operator-validator=false"
        " --overwrite, or keep gpuslice off it by nodeSelector"
    )
