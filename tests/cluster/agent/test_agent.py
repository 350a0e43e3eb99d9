"""The node agent's objects at a real API server, with the manifests' rights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR
from lab.cluster.controlplane import ControlPlane
from nri_plugin.kube import verification
from nri_plugin.kube.reports import STOPPED
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice
from scheduler.kubernetes import translate
from scheduler.kubernetes.leases import agent_lease
from tests.cluster.agent import side as agent_side
from tests.cluster.agent.node import (
    DEVICES,
    Json,
    Node,
    Pods,
    allocated,
    events,
    node_events,
    of_gpus,
    of_pod,
    pod_name,
    small_gpu,
)
from tests.cluster.agent.side import Side
from tests.cluster.opening import opened
from tests.cluster.server import MERGE_PATCH, Server
from tests.requests.pods import binding
from tests.simgpu.host import GIB, Host
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.sim]


def test_the_agent_publishes_its_gpus_and_the_scheduler_reads_them(side: Side, node: Node) -> None:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    until(lambda: translate.node(node.get()).isolates, "the label")
    until(lambda: node.ready() == "true", "the Lease")
    facts = translate.device(node.device())
    assert facts.problems == ()
    assert facts.node_uid == node.get()["metadata"]["uid"]
    assert [(c.minor, c.total_bytes, c.usable) for c in facts.gpus] == [
        (0, 8 * GIB, True),
        (1, 4 * GIB, True),
    ]
    lease = agent_lease(node.lease())
    assert lease is not None and (lease.name, lease.not_ready) == (node.name, "")
    until(lambda: agent_lease(node.lease()) != lease, "the Lease is renewed")


def test_the_agent_restores_changed_totals_and_its_device(
    side: Side, node: Node, server: Server
) -> None:
    whole = of_gpus(8 * GIB, 4 * GIB)
    node.have(whole)
    zeros = {"status": {"capacity": dict.fromkeys(KOORDINATOR.node_resources, "0")}}
    assert server.ask("PATCH", f"{node.path}/status", zeros, MERGE_PATCH).done
    node.have(whole)
    before = translate.device(node.device()).gpus
    assert server.ask("DELETE", f"{DEVICES}/{node.name}").done
    until(lambda: translate.device(node.device()).gpus == before, "the Device is there again")
    spoilt: Json = {"spec": {"devices": []}}
    assert server.ask("PATCH", f"{DEVICES}/{node.name}", spoilt, MERGE_PATCH).done
    until(lambda: translate.device(node.device()).gpus == before, "the Device is as it was")


def test_a_gpu_that_cannot_be_injected_is_unhealthy_and_the_others_are_not(
    side: Side, node: Node
) -> None:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    first, _ = translate.device(node.device()).gpus
    side.readiness.unusable = {first.uuid: "GPU has no CDI device"}
    node.have(of_gpus(4 * GIB))
    ill, well = node.device()["spec"]["devices"]
    assert (ill["health"], well["health"]) == (False, True)
    assert ill["conditions"][0]["message"] == "GPU has no CDI device"
    assert node.ready() == "true"


def test_a_node_of_the_same_name_is_another(side: Side, node: Node, server: Server) -> None:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    assert server.ask("DELETE", node.path).done
    node.make()
    uid = node.get()["metadata"]["uid"]
    node.have(of_gpus(8 * GIB, 4 * GIB))
    until(lambda: translate.device(node.device()).node_uid == uid, "the Device is the new node's")


def test_the_lease_has_the_problems_of_readyz(side: Side, node: Node) -> None:
    until(lambda: node.ready() == "true", "the Lease")
    side.readiness.session = "the container runtime is away"
    side.readiness.node = ("no GPU",)
    until(lambda: node.ready() == "the container runtime is away; no GPU", "why not")
    side.readiness.session, side.readiness.node = None, ()
    until(lambda: node.ready() == "true", "ready again")
    side.stop()
    assert node.ready() == STOPPED


def test_a_failed_gpu_counts_while_it_is_held_and_outlives_its_device_object(
    account: Path, node: Node, server: Server, host: Host, pods: Pods
) -> None:
    """A restarted agent derives the failed GPU from the grants."""

    def listed() -> list[tuple[bool, int]]:
        devices = node.device().get("spec", {}).get("devices", [])
        return [(e["health"], int(e["resources"][names.RESOURCE_MEMORY]) // GIB) for e in devices]

    with agent_side.serving(node.name, account, host.env()):
        pod = pods.bind(node, small_gpu(node), 1, 2 * GIB)
        host.fault("lose", gpu=1)
        until(lambda: listed() == [(True, 8), (False, 4)], "the GPU is listed as unhealthy")
        node.have(of_gpus(8 * GIB, 4 * GIB))
    assert server.ask("DELETE", f"{DEVICES}/{node.name}").done
    with agent_side.serving(node.name, account, host.env()):
        until(lambda: listed() == [(True, 8), (False, 2)], "it is listed with what is granted")
        node.have(of_gpus(8 * GIB, 2 * GIB))
        assert server.ask("DELETE", f"{pod}?gracePeriodSeconds=0").done
        node.have(of_gpus(8 * GIB))


# --- grants


@pytest.fixture
def unguarded(installed: ControlPlane) -> Iterator[None]:
    with opened(installed):
        yield


def test_a_grant_that_no_scheduler_wrote_is_reported(
    side: Side, node: Node, server: Server, pods: Pods, unguarded: None
) -> None:
    """The API server's record of the writers shows it."""
    uuid = small_gpu(node)
    share = allocated(uuid, 1, GIB // 2, core=10)
    made = pods.make(node.name, share)
    honest = pods.bind(node, uuid, 1, GIB)
    changed = pods.make()
    pods.bound(changed, node, {})
    until(lambda: side.bounds.pod(of_pod(server, changed, uuid, 1).pod_uid) is not None, "it")
    assert server.ask("PATCH", changed, {"metadata": {"annotations": share}}, MERGE_PATCH).done
    unsigned = pods.make(annotations=share)
    assert server.ask("POST", f"{unsigned}/binding", binding(pod_name(unsigned), node.name)).done
    wrong = {
        made: "the pod was created with spec.nodeName; no scheduler bound it",
        changed: f"annotation {names.ANNOTATION_DEVICE_ALLOCATED} was changed after",
        unsigned: f"annotation {names.ANNOTATION_WRITER}, which our scheduler writes with it",
    }
    side.ledger.adopt(
        [of_pod(server, path, uuid, GIB // 2, container_id=path) for path in (*wrong, honest)], ()
    )
    for path, why in wrong.items():
        until(partial(events, server, path), f"its event: {why}")
        (said,) = events(server, path)
        assert "refused now: GPU grant: must be written by a scheduler" in said and why in said
    assert events(server, honest) == []


def test_a_container_of_a_deleted_pod_is_reported_at_the_node(
    side: Side, node: Node, server: Server, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "ABSENT_S", 1.0)
    uuid = small_gpu(node)
    path = pods.bind(node, uuid, 1, GIB)
    side.ledger.adopt([of_pod(server, path, uuid, GIB)], ())
    assert server.ask("DELETE", f"{path}?gracePeriodSeconds=0").done
    until(lambda: bool(node_events(server, node)), "the node's event")
    (said,) = node_events(server, node)
    assert (said["reason"], said["related"]["name"]) == (
        names.EVENT_GRANT_UNCONFIRMED,
        pod_name(path),
    )


def test_the_order_of_binding_outlives_the_agent(
    account: Path, node: Node, host: Host, server: Server, pods: Pods
) -> None:
    """Bound in different seconds while no agent ran."""
    with agent_side.serving(node.name, account, host.env()):
        uuid = small_gpu(node)
    first = pods.bind(node, uuid, 1, 3 * GIB)
    time.sleep(1.1)  # the API server records a pod's binding time in whole seconds
    second = pods.bind(node, uuid, 1, 3 * GIB)
    with agent_side.serving(node.name, account, host.env()) as side:
        later, earlier = (
            of_pod(server, second, uuid, 3 * GIB),
            of_pod(server, first, uuid, 3 * GIB, "2"),
        )
        side.ledger.adopt([later, earlier], ())
        until(lambda: bool(events(server, second)), "the later one is reported")
        assert events(server, first) == []


def test_a_notice_for_a_pods_author_becomes_an_event(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    path = pods.bind(node, "GPU-0", 0, GIB)
    metadata = server.ask("GET", path).body["metadata"]
    pod = Pod(metadata["uid"], metadata["namespace"], metadata["name"])
    gone = Pod("gone", "no-such-namespace", "gone")
    reason = names.EVENT_LIMIT_NOT_ENFORCEABLE
    for of in (gone, pod, pod):
        side.notices.add(Notice(of, "main", reason, "static\n" + "x" * 2000))
    events = f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events"

    def written() -> list[Json]:
        return list(server.ask("GET", events).body["items"])

    until(lambda: bool(written()), "the event")
    (said,) = written()
    assert (said["regarding"]["uid"], said["reason"]) == (pod.uid, reason)
    assert said["note"].startswith("static\\nxxx") and len(said["note"]) == 1000
    until(lambda: side.notices.first() is None, "nothing waits")


def test_missed_writes_are_repeated_after_an_outage(
    side: Side, node: Node, installed: ControlPlane
) -> None:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    until(lambda: side.metrics.api_up._value.get() == 1, "the server answers")
    installed.apiserver.kill()
    until(lambda: side.metrics.api_up._value.get() == 0, "the server does not answer")
    side.readiness.node = ("no GPU",)
    installed.restart_apiserver()
    with Server(installed) as again:
        node = Node(again, node.name)
        until(lambda: node.ready() == "no GPU", "the Lease is renewed")
        until(lambda: side.metrics.api_up._value.get() == 1, "the server answers again")
        zeros = {"status": {"capacity": dict.fromkeys(KOORDINATOR.node_resources, "0")}}
        assert again.ask("PATCH", f"{node.path}/status", zeros, MERGE_PATCH).done
        node.have(of_gpus(8 * GIB, 4 * GIB))
