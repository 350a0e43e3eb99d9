"""The node agent's objects at a real API server, with the manifests' rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from nri_plugin.kube.reports import STOPPED
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice
from scheduler.kubernetes import translate
from scheduler.kubernetes.leases import agent_lease
from tests.cluster.agent.node import Node, Pods, allocated, events, hold, pod_name, pod_of
from tests.cluster.agent.side import Side, serving
from tests.cluster.installing import opened
from tests.cluster.server import Server
from tests.requests.pods import binding
from tests.simgpu.host import GIB, Host
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.sim]


def test_the_agent_publishes_its_gpus_and_the_scheduler_reads_them(side: Side, node: Node) -> None:
    node.have(8 * GIB, 4 * GIB)
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

    side.readiness.unusable = {facts.gpus[0].uuid: "GPU has no CDI device"}
    node.have(4 * GIB)
    ill, well = node.device()["spec"]["devices"]
    assert (ill["health"], well["health"]) == (False, True)
    assert ill["conditions"][0]["message"] == "GPU has no CDI device"
    assert node.ready() == "true"


def test_the_agent_restores_changed_totals_and_its_device(
    side: Side, node: Node, server: Server
) -> None:
    node.have(8 * GIB, 4 * GIB)
    node.spoil()
    node.have(8 * GIB, 4 * GIB)
    before = translate.device(node.device()).gpus
    assert server.ask("DELETE", node.device_path).done
    until(lambda: translate.device(node.device()).gpus == before, "the Device is there again")
    assert server.patch(node.device_path, {"spec": {"devices": []}}).done
    until(lambda: translate.device(node.device()).gpus == before, "the Device is as it was")

    # Recreate the node under the same name.
    assert server.ask("DELETE", node.path).done
    node.make()
    uid = node.get()["metadata"]["uid"]
    node.have(8 * GIB, 4 * GIB)
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
    """The restarted agent finds the failed GPU through the grants."""

    def listed() -> list[tuple[bool, int]]:
        devices = node.device().get("spec", {}).get("devices", [])
        return [(e["health"], int(e["resources"][names.RESOURCE_MEMORY]) // GIB) for e in devices]

    with serving(node.name, account, host.env()):
        pod = pods.bind(node, node.small_gpu(), 1, 2 * GIB)
        host.fault("lose", gpu=1)
        until(lambda: listed() == [(True, 8), (False, 4)], "the GPU is listed as unhealthy")
        node.have(8 * GIB, 4 * GIB)
    assert server.ask("DELETE", node.device_path).done
    with serving(node.name, account, host.env()):
        until(lambda: listed() == [(True, 8), (False, 2)], "it is listed with what is granted")
        node.have(8 * GIB, 2 * GIB)
        assert server.ask("DELETE", f"{pod}?gracePeriodSeconds=0").done
        node.have(8 * GIB)


def test_missed_writes_are_repeated_after_an_outage(
    side: Side, node: Node, installed: ControlPlane
) -> None:
    node.have(8 * GIB, 4 * GIB)
    until(lambda: side.metrics.api_up._value.get() == 1, "the server answers")
    installed.apiserver.kill()
    until(lambda: side.metrics.api_up._value.get() == 0, "the server does not answer")
    side.readiness.node = ("no GPU",)
    installed.restart_apiserver()
    with Server(installed) as again:
        node = Node(again, node.name)
        until(lambda: node.ready() == "no GPU", "the Lease is renewed")
        until(lambda: side.metrics.api_up._value.get() == 1, "the server answers again")
        node.spoil()
        node.have(8 * GIB, 4 * GIB)


# --- grants


def test_a_grant_that_no_scheduler_wrote_is_reported(
    side: Side, node: Node, server: Server, pods: Pods, installed: ControlPlane
) -> None:
    """The agent sees this in the field managers that the API server records."""
    uuid = node.small_gpu()
    share = allocated(uuid, 1, GIB // 2, core=10)
    with opened(installed):
        made = pods.make(node.name, share)
        honest = pods.bind(node, uuid, 1, GIB)
        changed = pods.make()
        pods.bound(changed, node, {})
        until(lambda: side.bounds.pod(pod_of(server, changed).uid) is not None, "it")
        assert server.patch(changed, {"metadata": {"annotations": share}}).done
        unsigned = pods.make(annotations=share)
        body = binding(pod_name(unsigned), node.name)
        assert server.ask("POST", f"{unsigned}/binding", body).done
    wrong = {
        made: "the pod was created with spec.nodeName; no scheduler bound it",
        changed: f"annotation {names.ANNOTATION_DEVICE_ALLOCATED} was changed after",
        unsigned: f"annotation {names.ANNOTATION_WRITER}, which our scheduler writes with it",
    }
    held = [hold(server, path, uuid, GIB // 2) for path in (*wrong, honest)]
    side.ledger.adopt(held, ())
    until(lambda: all(events(server, path) for path in wrong), "their events")
    for path, why in wrong.items():
        (said,) = events(server, path)
        assert said["reason"] == names.EVENT_GRANT_REFUSED
        assert "refused now: GPU grant: must be written by a scheduler" in said["note"]
        assert why in said["note"]
    assert events(server, honest) == []


def test_a_notice_becomes_an_event_of_its_pod_or_of_the_node(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    """The notice about a pod that no longer exists becomes an event of the node."""
    path = pods.bind(node, "GPU-0", 0, GIB)
    pod, gone = pod_of(server, path), Pod("gone", "no-such-namespace", "gone")
    reason, absent = names.EVENT_LIMIT_NOT_ENFORCEABLE, names.EVENT_GRANT_UNCONFIRMED
    for of in (gone, pod, pod):
        side.notices.add(Notice(of, "main", reason, "static\n" + "x" * 2000))
    side.notices.add(Notice(gone, "main", absent, "no such pod", of_node=True))
    until(lambda: side.notices.first() is None, "nothing waits")
    (said,) = events(server, path)
    assert (said["regarding"]["uid"], said["reason"]) == (pod.uid, reason)
    assert said["note"].startswith("static\\nxxx") and len(said["note"]) == 1000
    (said,) = events(server, node.path)
    assert (said["reason"], said["related"]["name"]) == (absent, "gone")
