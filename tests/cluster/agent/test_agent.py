"""The node agent's objects at a real API server, with the manifests' rights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR, VOLCANO, VOLCANO_MEMORY, VOLCANO_NUMBER
from lab.cluster.controlplane import ControlPlane
from nri_plugin.kube.heartbeat import STOPPED
from nri_plugin.kube.inventory_publisher import CONTEST_WRITES
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
    account,
    events,
    host,
    leaving,
    node,
    of_gpus,
    of_pod,
    pods,
    server,
    side,
    small_gpu,
)
from tests.cluster.agent.side import Side
from tests.cluster.server import MERGE_PATCH, Server
from tests.simgpu.host import GIB, Host
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.sim]

__all__ = ["account", "host", "node", "pods", "server", "side"]


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


def test_a_node_has_volcanos_totals_while_its_dialect_is_on(
    account: Path, node: Node, host: Host
) -> None:
    koordinators = of_gpus(8 * GIB, 4 * GIB)
    with agent_side.serving(node.name, account, host.env(), dialects=(KOORDINATOR, VOLCANO)):
        node.have({**koordinators, VOLCANO_MEMORY: 12 << 10, VOLCANO_NUMBER: 2})
    with agent_side.serving(node.name, account, host.env()):
        node.have(koordinators)


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


def test_another_writer_of_the_totals_is_left_alone(side: Side, node: Node, server: Server) -> None:
    zeros: Json = {"status": {"capacity": dict.fromkeys(KOORDINATOR.node_resources, "0")}}
    for _ in range(CONTEST_WRITES):
        node.have(of_gpus(8 * GIB, 4 * GIB))
        assert server.ask("PATCH", f"{node.path}/status", zeros, MERGE_PATCH).done
    until(lambda: "overwrites this agent's values" in node.ready(), "it is said")
    time.sleep(2)
    assert {node.get()["status"]["capacity"][key] for key in KOORDINATOR.node_resources} == {"0"}


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


def test_a_gpu_that_fails_counts_while_it_is_held(
    side: Side, node: Node, server: Server, host: Host, pods: Pods
) -> None:
    node.have(of_gpus(8 * GIB, 4 * GIB))
    (lost,) = (c for c in translate.device(node.device()).gpus if c.minor == 1)
    pod = pods.bind(node, lost.uuid, 1, 2 * GIB)
    host.fault("lose", gpu=1)

    def usable() -> list[bool]:
        return [gpu.usable for gpu in translate.device(node.device()).gpus]

    until(lambda: usable() == [True, False], "the GPU is listed as unhealthy")
    node.have(of_gpus(8 * GIB, 4 * GIB))
    assert server.ask("DELETE", f"{pod}?gracePeriodSeconds=0").done
    node.have(of_gpus(8 * GIB))
    assert usable() == [True, False], "NVML still has it, lost"


@pytest.mark.parametrize("agent", ["runs", "was killed"])
def test_a_failed_gpu_that_is_held_outlives_its_device_object(
    account: Path, node: Node, server: Server, host: Host, pods: Pods, agent: str
) -> None:
    """An agent remembers the GPUs that it has listed; a restarted one derives them from the
    grants."""

    def is_failed(memory_bytes: int) -> bool:
        listed = node.device().get("spec", {}).get("devices", [])
        found = [(each["id"], each["minor"], each["health"]) for each in listed]
        return [each[1:] for each in found] == [(0, True), (1, False)] and (
            found[1][0] == uuid
            and listed[1]["resources"][names.RESOURCE_MEMORY] == str(memory_bytes)
        )

    with agent_side.serving(node.name, account, host.env()):
        uuid = small_gpu(node)
        pods.bind(node, uuid, 1, 2 * GIB)
        host.fault("lose", gpu=1)
        until(lambda: is_failed(4 * GIB), "the GPU is listed as unhealthy")
        if agent == "runs":
            assert server.ask("DELETE", f"{DEVICES}/{node.name}").done
            until(lambda: is_failed(4 * GIB), "the Device is as it was")
            node.have(of_gpus(8 * GIB, 4 * GIB))
            return
    assert server.ask("DELETE", f"{DEVICES}/{node.name}").done
    with agent_side.serving(node.name, account, host.env()):
        until(lambda: is_failed(2 * GIB), "the GPU is listed with what is granted of it")
        node.have(of_gpus(8 * GIB, 2 * GIB))


# --- pods with an unavailable grant


def test_a_pod_that_was_bound_to_a_full_gpu_is_reported_and_stays(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    uuid = small_gpu(node)
    first, late = (pods.bind(node, uuid, 1, size) for size in (3 * GIB, 2 * GIB))
    side.holds = (of_pod(server, late, uuid, 2 * GIB),)
    until(lambda: bool(events(server, late)), "its event")
    (said,) = events(server, late)
    assert f"refused now: {uuid}: insufficient free capacity when the pod was bound" in said
    time.sleep(2)  # several checks
    assert not leaving(server, late) and not leaving(server, first)


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
        side.holds = (
            of_pod(server, second, uuid, 3 * GIB),
            of_pod(server, first, uuid, 3 * GIB, "2"),
        )
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
