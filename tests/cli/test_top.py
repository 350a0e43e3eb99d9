"""What `gpuslice top` shows: grants, use, and what the user may not read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from gpuslice.cli import cluster, top_view
from gpuslice.cli.cluster import Cluster
from gpuslice.cli.live import Reader
from gpuslice.cli.use import Sample, SliceUse, parse
from gpuslice.contract import names
from gpuslice.kube import port_forward
from gpuslice.kube.errors import KubeError
from tests.cli.objects import (
    GIB,
    GPU,
    agent,
    claim,
    claiming,
    devices,
    holder,
    page,
    pod,
    slices,
    waiting,
)
from tests.cli.served import served
from tests.kube.api_server import client_of
from tests.support import Clock

KEY = ("ns", "p", "main", GPU)


# --- grants


def test_slices_are_of_the_grants_and_a_gpus_sum_is_of_the_allocations() -> None:
    """A core of 100 beside a smaller allocation is no cap."""
    pods = [holder("p", 20, 50, 40), holder("q", 8, 100, 0), holder("r", 4, 30)]
    (node,) = cluster.read(devices(), pods).nodes
    first, second = node.gpus
    found = [(each.pod, each.memory_bytes // GIB, each.core_percent) for each in first.slices]
    assert found == [("p", 20, 50), ("q", 8, None), ("r", 4, 30)]
    assert (first.granted_bytes // GIB, first.granted_core) == (32, 70)
    assert (second.slices, second.granted_bytes) == ([], 0)


def test_a_pod_of_koordinators_scheduler_has_one_slice_for_its_containers() -> None:
    text = f'{{"gpu":[{{"minor":1,"resources":{{"{names.RESOURCE_MEMORY_RATIO}":25}}}}]}}'
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text}
    (node,) = cluster.read(devices(), [pod("p", "node-0000", annotations=annotations)]).nodes
    (only,) = node.gpus[1].slices
    assert (only.container, only.memory_bytes, only.core_percent) == ("", 20 * GIB, None)


def test_the_node_with_the_largest_granted_part_is_first() -> None:
    found = cluster.read(devices(3), [holder("p", 20, 50)])
    assert [node.name for node in found.nodes] == ["node-0000", "node-0001", "node-0002"]
    moved = holder("p", 20, 50)
    moved["metadata"]["annotations"] = {
        names.ANNOTATION_DEVICE_ALLOCATED: f'{{"gpu":[{{"minor":0,"resources":'
        f'{{"{names.RESOURCE_MEMORY}":"20Gi"}}}}]}}'
    }
    moved["spec"]["nodeName"] = "node-0002"
    assert cluster.read(devices(3), [moved]).nodes[0].name == "node-0002"


REFUSED = {"name": "main", "state": {"waiting": {"reason": "CreateError", "message": "no\x1b[2J"}}}
CREATING = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
BROKEN = {names.ANNOTATION_GRANTS: "{"}
WHOLE = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}


@pytest.mark.parametrize(
    ("given", "reasons"),
    [
        (waiting("p", "0/1 nodes are available: 1 x"), ["0/1 nodes are available: 1 x"]),
        (waiting("p", "0/1: 1 x. preemption: 0/1 nodes: 1 no victims."), ["0/1: 1 x."]),
        (
            holder("p", 1, 1, 1, status={"containerStatuses": [REFUSED]}),
            ["main: CreateError: no [2J"],
        ),
        (holder("p", 1, 1, 1, status={"containerStatuses": [CREATING]}), []),
        (
            pod("p", "node-0000", annotations=BROKEN),
            [
                f"annotation {names.ANNOTATION_GRANTS}: not JSON: Expecting property name enclosed"
                " in double quotes: line 1 column 2 (char 1)"
            ],
        ),
        (pod("p", spec={"schedulerName": "default-scheduler", **WHOLE}), []),
        (pod("p", spec={"containers": [{}]}), []),
    ],
    ids=["no node", "preemption", "refused", "creating", "annotation", "whole GPU", "no share"],
)
def test_a_pod_that_waits_is_listed_with_its_reason(given: Any, reasons: list[str]) -> None:
    assert [each.reason for each in cluster.read(devices(), [given]).waiting] == reasons


def test_a_namespace_has_its_own_slices_and_the_gpus_whole_sums() -> None:
    other = holder("q", 8, 10)
    other["metadata"]["namespace"] = "other"
    pods = [holder("p", 20, 50), other, waiting("w", "why", "other")]
    found = cluster.read(devices(2), pods, namespace="ns")
    (node,) = found.nodes
    (gpu,) = node.gpus
    assert [each.pod for each in gpu.slices] == ["p"]
    assert (gpu.granted_bytes, found.waiting) == (28 * GIB, [])


# --- claims


def test_a_node_that_serves_claims_shows_what_its_claims_have() -> None:
    """A claim that several pods have is one share of the GPU."""
    found = [
        claim("one", 20, 30, "p"),
        claim("two", 8, 0, "q", "r"),
        claim("old", 1, 1, "s", node="gone"),
        claim("wants", pods=("w",)),
        {"metadata": {"name": "nic"}, "spec": {"devices": {"requests": [{"exactly": {}}]}}},
    ]
    pods = [claiming("w", "wants"), claiming("p", "one", node="node-0000"), agent()]
    (node,) = cluster.read([], pods, [*slices(), {"spec": {"driver": "x"}}], found).nodes
    first, second = node.gpus
    shown = [(e.pod, e.claim, e.memory_bytes // GIB, e.core_percent) for e in first.slices]
    assert shown == [("p", "one", 20, 30), ("q", "two", 8, None), ("r", "two", 8, None)]
    assert (first.granted_bytes // GIB, first.granted_core) == (28, 30)
    assert (first.uuid, first.minor, first.memory_bytes) == (GPU, 0, 80 * GIB)
    assert (second.minor, second.slices, second.healthy) == (1, [], True)
    assert node.agent == ("agent", 10275)
    sample = parse(page("p", GIB, container=""), 0.0)
    node.show(sample)
    assert first.slices[0].use == sample.slices["ns", "p", "", GPU]


def test_the_use_is_that_of_the_container_that_has_the_claim() -> None:
    """The agent's metrics have one figure for several claims of a container."""
    every = [claim("one", 20, 30, "p"), claim("two", 8, 0, "p"), claim("three", 8, 0, "p")]
    containers = [
        {"name": name, "resources": {"claims": [{"name": each} for each in of]}}
        for name, of in (("main", ("one",)), ("side", ("two", "three")))
    ]
    given = claiming("p", "one", "two", "three", node="node-0000")
    given["spec"]["containers"] = containers
    (node,) = cluster.read([], [given], slices(), every).nodes
    used = parse(page("p", GIB) + page("p", GIB, container="side"), 0.0)
    node.show(used)
    shown = {each.claim: each.use for each in node.gpus[0].slices}
    assert shown == {"one": used.slices["ns", "p", "main", GPU], "two": None, "three": None}


def test_a_tainted_gpu_is_unhealthy() -> None:
    (published,) = slices()
    published["spec"]["devices"][0]["taints"] = [{"key": names.TAINT_UNHEALTHY}]
    (node,) = cluster.read([], [], [published]).nodes
    assert [gpu.healthy for gpu in node.gpus] == [False, True]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (claiming("p", "c", why="1 cannot allocate all claims."), "1 cannot allocate all claims."),
        (claiming("p", "c"), "waits for kube-scheduler, or for its claims"),
        (
            claiming("p", labels={names.LABEL_CLAIM_TEMPLATE: "true"}),
            "waits for kube-scheduler, or for its claims",
        ),
        (
            claiming("p", "c", node="node-0000", status={"containerStatuses": [REFUSED]}),
            "main: CreateError: no [2J",
        ),
        (claiming("p", "nic"), ""),
    ],
    ids=["no room", "not tried", "template", "refused", "another driver's"],
)
def test_a_pod_with_claims_that_waits_is_listed(given: Any, reason: str) -> None:
    found = cluster.read([], [given], slices(), [claim("c")])
    assert [each.reason for each in found.waiting] == [reason] * bool(reason)


# --- use


def test_figures_are_those_of_the_agents_metrics_and_rates_need_two_samples() -> None:
    before, after = parse(page("p", GIB, 3.0), 10.0), parse(page("p", 2 * GIB, 4.0), 12.0)
    first = before.since(None).slices[KEY]
    assert first == SliceUse(GIB, 20 * GIB, share_ratio=0.25, throttled_s=3.0)
    second = after.since(before)
    assert second.slices[KEY].throttled_ratio == 0.5
    assert second.gpus[GPU] == 2 * GIB
    assert before.since(after).slices[KEY].throttled_ratio is None


def test_an_agent_without_a_metric_leaves_it_unknown() -> None:
    sample = parse(b"other 1\n", 0.0)
    assert sample == Sample(0.0, {}, {})
    (node,) = cluster.read(devices(), [holder("p", 20, 50)]).nodes
    node.show(sample)
    found = cluster.document(Cluster([node], ()), ())
    (gpu, _) = found["nodes"][0]["gpus"]
    assert (gpu["used_bytes"], gpu["slices"][0]["use"]) == (None, None)
    json.dumps(found)


# --- the API server


async def test_a_reader_lists_once_in_ten_seconds_and_asks_the_agents() -> None:
    clock = Clock()
    async with client_of(served(holder("p", 20, 50))) as kube:
        reader = Reader(kube, clock=clock)
        found = await reader.grants()
        assert await reader.use(found.nodes)
        used = found.nodes[0].gpus[0].slices[0].use
        assert used and used.used_bytes == 5 * GIB
        clock.seconds += 9
        assert await reader.grants() is found
        clock.seconds += 2
        assert await reader.grants() is not found
        assert reader.notices == {}


@pytest.mark.parametrize(
    ("status", "notice"),
    [
        (403, "no nodes of claims: needs list resourceslices, resourceclaims (gpuslice-viewer)"),
        (404, ""),
    ],
)
async def test_without_claims_the_other_nodes_are_shown(status: int, notice: str) -> None:
    """Kubernetes before 1.34 does not have them, and an older role has no right to them."""
    async with client_of(served(no_claims=status)) as kube:
        reader = Reader(kube)
        assert [node.name for node in (await reader.grants()).nodes] == ["node-0000"]
        assert [*reader.notices.values()] == [notice] * bool(notice)


async def test_a_cluster_without_devices_has_nodes_that_serve_claims() -> None:
    async with client_of(served(claimed=True)) as kube:
        (node,) = (await Reader(kube).grants()).nodes
        assert (node.name, node.agent) == ("node-0000", ("agent", 10275))
        assert [each.pod for each in node.gpus[0].slices] == ["p"]


async def test_a_node_without_an_agent_is_named() -> None:
    async with client_of(served(holder("p", 20, 50))) as kube:
        reader = Reader(kube)
        (node,) = (await reader.grants()).nodes
        node.agent = None
        assert not await reader.use([node])
        assert reader.notices["agents"].endswith("node-0000: no agent runs there")


def test_refusals_and_violations_are_behind_the_name() -> None:
    found = cluster.read(devices(), [holder("p", 20, 50)])
    found.nodes[0].gpus[0].slices[0].use = SliceUse(refused=3, violations=2)
    shown = top_view.lines(top_view.Frame(found, (), 120))
    assert any("ns/p/main (3 refused, 2x over)" in line.plain for line in shown)


async def test_without_portforward_one_line_names_the_right() -> None:
    async with client_of(served(holder("p", 20, 50), may_forward=False)) as kube:
        reader = Reader(kube)
        assert not await reader.use((await reader.grants()).nodes)
        (line,) = reader.notices.values()
        assert (
            line
            == "no use: needs get, create pods/portforward in gpuslice-system (gpuslice-viewer)"
        )


async def test_without_a_right_to_all_pods_a_namespace_still_has_its_own() -> None:
    async with client_of(served(holder("p", 20, 50), may_list=False)) as kube:
        reader = Reader(kube, "ns")
        found = await reader.grants()
        assert [each.pod for each in found.nodes[0].gpus[0].slices] == ["p"]
        assert await reader.use(found.nodes)
        (line,) = reader.notices.values()
        assert "no right to list pods of all namespaces" in line
        with pytest.raises(KubeError, match="Forbidden"):
            await Reader(kube).grants()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ([b"\1\x23\x28refused"], "refused"),
        ([b"\0\x23\x28HTTP/1.1 500 no\r\nContent-Length: 1\r\n\r\nx"], "unexpected answer"),
        ([b"\0\x23\x28HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"], "ended too early"),
    ],
)
async def test_a_failed_connection_is_an_error(sent: list[bytes], text: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        for each in sent:
            await socket.send_bytes(each)
        await socket.close()
        return socket

    async with client_of(answer) as kube:
        with pytest.raises(KubeError, match=text):
            await port_forward.get(kube, "ns", "p", 1, "/metrics", 30.0)


# --- the frame


def _frame(width: int = 80, ascii_only: bool = True) -> top_view.Frame:
    found = cluster.read(devices(2), [holder("p", 20, 50, 50), waiting("w", "x" * 200)])
    found.nodes[0].show(parse(page("p", 19.5 * GIB), 0.0))
    return top_view.Frame(found, ["a notice"], width, 24, ascii_only)


def test_a_frame_fits_80_columns_and_reads_without_colour() -> None:
    shown = [line.plain for line in top_view.lines(_frame())]
    assert max(map(len, shown)) <= 80
    assert "".join(shown).isascii()
    (gpu,) = (line for line in shown if "GPU 0 " in line)
    (own,) = (line for line in shown if "ns/p/main" in line)
    assert "[###.........]" in gpu and "19.5 of 20.0 of 80.0" in gpu
    assert "[############]" in own and "19.5 of 20.0" in own and "25% of 50%" in own
    assert "a notice" in shown
    assert "  GPU 0, 1: without a slice, 160.0 GiB" in shown


def test_a_low_terminal_shows_the_nodes_that_fit_and_says_so() -> None:
    found = cluster.read(devices(100), [])
    frame = top_view.Frame(found, [], 80, 24)
    shown = [line.plain for line in top_view.lines(frame)]
    assert len(shown) <= 24
    assert any("90 more nodes" in line for line in shown)
    assert len(top_view.visible(top_view.Frame(found, [], 80))) == 100
