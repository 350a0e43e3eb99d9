"""`gpuslice explain` against an API server: what it reads, and what it does without a right."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from string import Formatter
from typing import Any

import pytest
from aiohttp import web

from gpuslice.cli import explain as module
from gpuslice.cli.explain import read
from gpuslice.cli.explanation import explain
from gpuslice.cli.first_lists import CLAIMS, SLICES
from gpuslice.cli.queue_state import LOCAL_QUEUES, WORKLOADS, Held
from gpuslice.cli.remedies import Do
from gpuslice.contract import names
from gpuslice.contract.grants import GpuGrant, encode
from gpuslice.kube.errors import KubeError
from nri_plugin.policy import refusals
from nri_plugin.policy.refusals import Reason as Refused
from scheduler import cache
from scheduler.events import POD_PROBLEM
from scheduler.queues import figures
from scheduler.queues.tree import QUEUES
from tests.cli.objects import GPU, agent, claim, claiming, slices
from tests.kube.api_server import client_of, json, listed, refuse
from tests.queues.kai import Q
from tests.scheduler.objects import Gi, allocated, container, device, gpu, lease, node, pod

_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_PATH = "/api/v1/namespaces/default/pods/pod-u-1"
_ASKING = pod(container("main", core=50, memory=20 * Gi))
_POD = {**_ASKING, "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled"}]}}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _objects() -> dict[str, Any]:
    amounts = {names.RESOURCE_CORE: "60", names.RESOURCE_MEMORY: "10Gi"}
    taken = {names.ANNOTATION_DEVICE_ALLOCATED: allocated(("GPU-a", 0, amounts))}
    other = pod(uid="u-2", node="n-a", phase="Running", annotations=taken)
    return {
        cache.NODES: [node("n-a"), node("n-b")],
        cache.DEVICES: [device("n-a", gpu("GPU-a", 0)), device("n-b", gpu("GPU-b", 0))],
        cache.LEASES: [_lease("n-a", "true"), _lease("n-b", "containerd: not connected")],
        cache.PODS: [_POD, other],
        _EVENTS: [],
        _PATH: _POD,
    }


def _lease(name: str, ready: str) -> dict[str, Any]:
    made = lease(name, ready=ready)
    made["spec"]["renewTime"] = _now()
    return made


async def _lines(
    served: dict[str, Any],
    forbidden: Sequence[str] = (),
    name: str = "pod-u-1",
    namespace: str = "default",
) -> Sequence[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in forbidden:
            return refuse(403, "Forbidden", "not allowed")
        found = served.get(request.path)
        if found is None:
            return refuse(404, "NotFound", "not found")
        return listed(*found) if isinstance(found, list) else json(found)

    async with client_of(answer) as kube:
        return explain(await read(kube, namespace, name, time.time()))


async def test_the_nearest_node_and_what_is_missing_there() -> None:
    lines = await _lines(_objects())
    assert lines == [
        "pod default/pod-u-1: waits for a GPU",
        "  nearest node: n-a: no GPU with enough free memory and core at once",
        "  1 node: GPU node agent is not ready: n-b",
        "  1 node: no GPU with enough free memory and core at once: n-a",
        "  no Events: computed from the current state (the API server keeps Events for an hour by"
        " default)",
        f"  do: {Do.CAPACITY}",
    ]


async def test_the_nearest_of_several_nodes_lacks_least() -> None:
    amounts = {names.RESOURCE_CORE: "10", names.RESOURCE_MEMORY: "10Gi"}
    small = {**amounts, names.RESOURCE_MEMORY: "8Gi"}
    fields = {
        key: {names.ANNOTATION_DEVICE_ALLOCATED: allocated(("GPU-b", 0, of))}
        for key, of in (("n-b", amounts), ("n-c", small))
    }
    served = _objects()
    served[cache.NODES] += [node("n-c")]
    served[cache.DEVICES] += [device("n-c", gpu("GPU-b", 0))]
    served[cache.LEASES] = [_lease(name, "true") for name in ("n-a", "n-b", "n-c")]
    served[cache.PODS] += [
        pod(uid=name, node=name, phase="Running", annotations=each) for name, each in fields.items()
    ]
    (line,) = [each for each in await _lines(served) if "nearest node" in each]
    assert line == (
        "  nearest node: n-c: no GPU with enough free memory"
        " (largest free slice 16 GiB of the 20 GiB requested)"
    )


async def test_the_agents_report_of_a_node_that_would_fit() -> None:
    served = {**_objects(), cache.NODES: [node("n-b")]}
    lines = await _lines(served)
    assert "  nearest node: n-b: GPU node agent is not ready: containerd: not connected" in lines
    assert "node n-b" in lines[-1]


async def test_a_node_that_fits_now_and_a_scheduler_that_does_not_try() -> None:
    served = {**_objects(), cache.LEASES: [_lease("n-a", "true"), _lease("n-b", "true")]}
    lines = await _lines(served)
    assert lines[0].endswith(": waits, although a GPU is free") or "no scheduler" in lines[1]
    assert "  nearest node: n-b: 20 GiB of GPU-b are free for it" in lines


async def test_events_are_of_this_pod_and_not_of_an_earlier_one_of_its_name() -> None:
    def event(uid: str, text: str) -> dict[str, Any]:
        about = {"kind": "Pod", "name": "pod-u-1", "uid": uid}
        return {"reason": POD_PROBLEM, "note": text, "regarding": about, "eventTime": _now()}

    served = {**_objects(), _EVENTS: [event("u-1", "now"), event("u-0", "before")]}
    lines = await _lines(served)
    assert [line for line in lines if "Event" in line] == [f"  Event {POD_PROBLEM}: now"]


async def test_a_running_pod_is_shown_with_what_its_agent_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    throttled = iter((10.0, 40.0))

    async def page(*_: object) -> bytes:
        labels = 'namespace="default",pod="pod-u-1",container="main",uuid="GPU-a"'
        name = "gpuslice_container_gpu_throttled_seconds_total"
        return f"{name}{{{labels}}} {next(throttled)}\n".encode()

    monkeypatch.setattr("gpuslice.kube.port_forward.get", page)
    monkeypatch.setattr(module, "_SAMPLED_S", 0.01)
    grant = {names.ANNOTATION_GRANTS: encode({"main": [GpuGrant("GPU-a", 0, Gi, 30)]})}
    mine = pod(container("main"), node="n-a", phase="Running", annotations=grant)
    agent = pod(
        {"name": "agent", "ports": [{"name": "http", "containerPort": 1}]},
        uid="u-3",
        node="n-a",
        phase="Running",
        labels={names.LABEL_NAME: names.AGENT},
    )
    lines = await _lines({**_objects(), _PATH: mine, cache.PODS: [mine, agent]})
    assert lines[0] == "pod default/pod-u-1: runs on n-a"
    assert re.search(r"1 GiB and 30 % of GPU 0 \(GPU-a\), launches wait \d+% of the time", lines[1])
    assert lines[-1] == f"  do: {Do.CORE}"


async def test_the_queue_of_a_pod_is_read() -> None:
    queue = {**Q("team", limit=1).raw()}
    labels = {names.LABEL_KUEUE_QUEUE: "team", names.LABEL_KAI_QUEUE: "team"}
    mine = {**_POD, "metadata": {**_POD["metadata"], "labels": labels}}
    mine["spec"] = {**mine["spec"], "schedulingGates": [{"name": figures.GATE}]}
    queue_paths = (QUEUES, WORKLOADS, LOCAL_QUEUES)
    served = {**_objects(), _PATH: mine, **{path: [] for path in queue_paths}, QUEUES: [queue]}
    lines = await _lines(served)
    assert lines[0] == f"pod default/pod-u-1: {Held.STOPPED}"
    assert lines[1].startswith("  queue team: the scheduler has not served the Queue yet")
    assert lines[-1] == f"  do: {Do.OPERATOR}"
    lines = await _lines(served, queue_paths)
    missing = "list queues; list workloads; list localqueues"
    assert (
        f"  missing rights (ClusterRole {names.VIEWER}), so this is incomplete: {missing}" in lines
    )


def _job(labels: dict[str, str], suspend: bool) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": _POD["spec"]}
    metadata = {"namespace": "default", "name": "train", "uid": "u-9"}
    return {"metadata": metadata, "spec": {"suspend": suspend, "template": template}}


@pytest.mark.parametrize("suspend", [True, False])
async def test_a_suspended_job_is_explained_as_its_pods(suspend: bool) -> None:
    """Kueue suspends a Job, so it has no pods. What waits is the sum of its pods."""
    shared = {"requests": {names.RESOURCE_MILLI: "300"}}
    pods = {"count": 3, "template": {"spec": {"containers": [{"resources": shared}]}}}
    workload = {
        "metadata": {"namespace": "default", "ownerReferences": [{"uid": "u-9"}]},
        "spec": {"queueName": "team", "podSets": [pods]},
    }
    queue = Q("team", quota=0, limit=1).raw()
    ready = {"type": figures.READY, "status": "True"}
    queue["status"] = {"conditions": [ready], "figures": {"used": 0.5, "limit": 1, "cluster": 4}}
    local = {"metadata": {"namespace": "default", "name": "team"}, "spec": {"clusterQueue": "team"}}
    labels = {names.LABEL_KUEUE_QUEUE: "team"}
    served = {
        **_objects(),
        **{QUEUES: [queue], WORKLOADS: [workload], LOCAL_QUEUES: [local], _PATH: None},
        "/apis/batch/v1/namespaces/default/jobs/train": _job(labels, suspend),
    }
    lines = await _lines(served, name="train")
    if suspend:
        assert lines[:3] == [
            f"job default/train: {Held.QUOTA}",
            "  waits in queue team and requests 0.9 GPUs; team's limit is 1 GPU, and 0.5 in use",
            "  queue team: place 1 of 1",
        ]
    else:
        assert lines[0] == "pod default/train: not found"


async def test_a_label_of_kai_without_effect_is_named() -> None:
    labels = {names.LABEL_RUNAI_QUEUE: "team"}
    mine = {**_POD, "metadata": {**_POD["metadata"], "labels": labels}}
    (line,) = [each for each in await _lines({**_objects(), _PATH: mine}) if "label" in each]
    assert line == (
        "  label runai/queue has no effect: the pod requests no share, or was created without"
        " queues.enabled or the namespace's label gpuslice.io/queues=true"
    )


# --- claims


_OTHER = {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "nic.example"}}]}}}
_TEMPLATED = {names.LABEL_CLAIM_TEMPLATE: "true"}
_HAS = "claim c has 20 GiB and 50 % of gpu-0 on node-0000"
_TESTED = {"regarding": {"kind": "Pod", "name": "p", "uid": "u"}, "reason": "FailedPrepare"}


def _served(mine: Any, *claims: Any, note: str = "") -> dict[str, Any]:
    """Return the objects of a cluster whose node serves claims."""
    mine["metadata"]["uid"] = "u"
    return {
        **{cache.NODES: [node("node-0000")], cache.LEASES: [], cache.PODS: [mine, agent()]},
        **{SLICES: slices(), CLAIMS: [*claims]},
        "/apis/events.k8s.io/v1/namespaces/ns/events": [{**_TESTED, "note": note}],
        "/api/v1/namespaces/ns/pods/p": mine,
    }


@pytest.mark.parametrize(
    ("mine", "claims", "headline", "lines", "do"),
    [
        (claiming("p", "c"), [], "waits for its ResourceClaims", ["claim c does not exist"], "SEE"),
        (
            claiming("p", "c", labels=_TEMPLATED, status={"resourceClaimStatuses": []}),
            [],
            "waits for its ResourceClaims",
            ["claim c does not exist"],
            "TEMPLATES",
        ),
        (
            claiming("p", "c", why="0/1: 1 cannot allocate all claims."),
            [claim("c")],
            "waits for a GPU",
            ["claim c is not allocated", "kube-scheduler: 0/1: 1 cannot allocate all claims."],
            "CLAIM",
        ),
        (
            claiming("p", "c", why="0/1: 1 Insufficient cpu."),
            [claim("c", 20, 50, "q")],
            "waits for a node",
            [
                f"{_HAS}, and is not reserved for this pod",
                "kube-scheduler: 0/1: 1 Insufficient cpu.",
            ],
            "CRITERIA",
        ),
        (claiming("p", "c"), [claim("c")], "waits for a node", ["claim c is not allocated"], "SEE"),
        (
            claiming("p", "c", node="node-0000"),
            [claim("c", 20, 50, "q")],
            "is bound to node-0000",
            [f"{_HAS}, and is not reserved for this pod", "on the same GPU: no pod"],
            "AGENT",
        ),
        (
            claiming("p", "c", node="node-0000"),
            [claim("c", 20, 50, "p"), claim("d", 1, 1, "q")],
            "is bound to node-0000",
            [f"claim c: 20 GiB and 50 % of GPU 0 ({GPU})", "on the same GPU: ns/q"],
            "AGENT",
        ),
        (
            claiming("p", "nic"),
            [{"metadata": {"name": "nic", "namespace": "ns"}, **_OTHER}],
            "requests no share of a GPU",
            [],
            "NOTHING",
        ),
        (
            claiming("p", status={"resourceClaimStatuses": [{"name": "x"}]}),
            [],
            "requests no share of a GPU",
            [],
            "NOTHING",
        ),
    ],
    ids=["gone", "template", "room", "other", "untried", "unreserved", "bound", "foreign", "none"],
)
async def test_a_pod_with_claims(
    mine: Any, claims: list[Any], headline: str, lines: list[str], do: str
) -> None:
    shown = await _lines(_served(mine, *claims), name="p", namespace="ns")
    assert shown[0] == f"pod ns/p: {headline}"
    assert shown[1:-1] == [f"  {line}" for line in lines]
    wanted = Do["DESCRIBE" if do == "SEE" else do]
    assert shown[-1] == f"  do: {wanted.format(pod='p', namespace='ns', node='NODE')}"


@pytest.mark.parametrize(
    ("reason", "do"), [(Refused.GPU_FULL, Do.RETRY), (Refused.CLAIMS_NOT_SERVED, Do.NODE)]
)
async def test_a_claim_that_the_agent_does_not_prepare(reason: Refused, do: Do) -> None:
    fields = {name: "x" for _, name, _, _ in Formatter().parse(reason.value) if name}
    text = refusals.CLAIM_REFUSED.format(claim="c", text=reason.value.format(**fields))
    mine = claiming("p", "c", node="node-0000")
    note = f"Failed to prepare dynamic resources: NodePrepareResources failed for c: {text}"
    served = _served(mine, claim("c", 20, 50, "p"), note=note)
    shown = await _lines(served, name="p", namespace="ns")
    assert shown == ["pod ns/p: refused by the agent of node node-0000", f"  {text}", f"  do: {do}"]


async def test_a_pod_with_a_whole_gpu_has_a_claim_that_its_spec_does_not_name() -> None:
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c"}}
    mine = claiming("p", node="node-0000", status=status)
    shown = await _lines(_served(mine, claim("c", 80, 100, "p")), name="p", namespace="ns")
    assert shown[1] == f"  claim c: 80 GiB and 100 % of GPU 0 ({GPU})"


async def test_without_a_right_to_claims_it_is_named() -> None:
    served = _served(claiming("p", "c"), claim("c"))
    shown = await _lines(served, [SLICES, CLAIMS], name="p", namespace="ns")
    assert shown == [
        "pod ns/p: waits for a node",
        "  claim c cannot be read",
        "  missing rights (ClusterRole gpuslice-viewer), so this is incomplete: list"
        " resourceslices; list resourceclaims",
        f"  do: {Do.RIGHTS}",
    ]


async def test_without_rights_it_names_them_and_shows_the_rest() -> None:
    lines = await _lines(_objects(), [cache.NODES, cache.LEASES, _EVENTS])
    assert lines == [
        "pod default/pod-u-1: waits for a node",
        "  missing rights (ClusterRole gpuslice-viewer), so this is incomplete: list events in"
        " namespace default; list nodes; list leases in namespace gpuslice-system",
        f"  do: {Do.RIGHTS}",
    ]
    with pytest.raises(KubeError, match="Forbidden"):
        await _lines(_objects(), [_PATH])
