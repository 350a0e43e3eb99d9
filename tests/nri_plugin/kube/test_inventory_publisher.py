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
from tests.kube.api_server import client_of, json, refuse
from tests.nri_plugin.objects import parts, settings
from tests.support import Clock

GPU = Gpu("GPU-0", 0, 1 << 30)


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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contest(clock: Clock) -> Contest:
    return Contest(clock)


def test_a_field_in_a_lasting_contest_is_left_to_the_other_client(
    contest: Contest, clock: Clock
) -> None:
    assert not contest.lasts
    assert fight(contest, clock, 1, CONTEST_WRITES + 2) == [True] * CONTEST_WRITES + [False] * 2
    assert contest.lasts
    clock.seconds += CONTEST_S
    assert contest.may_write("80Gi", "x"), "it is tried again"
    assert contest.lasts, "and not yet known to be over"
    clock.seconds += CONTEST_S
    assert not contest.lasts


def test_a_contest_that_continues_is_a_lasting_one(contest: Contest, clock: Clock) -> None:
    fight(contest, clock, 1, CONTEST_WRITES + 1)
    clock.seconds += CONTEST_S
    fight(contest, clock, 1, 2)  # written, and reverted once more
    clock.seconds += CONTEST_S - 2
    assert contest.lasts


def test_a_contest_within_just_the_period_is_a_lasting_one(contest: Contest, clock: Clock) -> None:
    fight(contest, clock, CONTEST_S / (CONTEST_WRITES - 1), CONTEST_WRITES + 1)
    assert contest.lasts


def test_what_is_no_contest(contest: Contest, clock: Clock) -> None:
    """A kubelet's writes at its starts; other values; late events; and one revert, however often
    the agent's answer to it fails."""
    assert all(fight(contest, clock, CONTEST_S / (CONTEST_WRITES - 1) + 1, 50))
    assert all(write(contest, f"{n}Gi", str(n)) for n in range(50))
    assert all(write(contest, "80Gi", "the same") for _ in range(50))
    assert all(contest.may_write("80Gi", f"unrelated {n}") for n in range(50))
    assert not contest.lasts


@pytest.mark.parametrize("stores_conditions", [True, False])
def test_the_device_is_written_as_the_api_server_stores_it(
    stores_conditions: bool, clock: Clock
) -> None:
    """None without a GPU. Older CRDs have no conditions, and a Device without a GPU has none."""
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

    async def scene() -> None:
        async with client_of(answer) as kube:
            agent = publisher(kube, GpuModes(Offer()), clock)
            inventory = agent._parts.inventory
            inventory.problem = None
            agent.node.observed({"metadata": {"name": "node-1", "uid": "u"}})
            for gpus in ((), (GPU,), (), (GPU,)):
                inventory.seen = gpus
                await agent._mend()
                agent.device.raw = {**stored}

    asyncio.run(scene())
    assert asked == [("POST", True), ("PATCH", False), ("PATCH", stores_conditions)]


def test_writes_that_the_api_server_rejects_are_no_contest(clock: Clock) -> None:
    """Other programs, such as the kubelet, write the node meanwhile."""
    asked = list[str]()
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
    found = status._with_mode(Entry(GPU, healthy=True))
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
