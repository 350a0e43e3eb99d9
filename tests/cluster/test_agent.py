"""What the node agent tells a real API server, with the rights that the manifests give it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import allocation, names
from nri_plugin import ledger
from nri_plugin.heartbeat import STOPPED
from nri_plugin.ledger import Hold
from nri_plugin.model import Pod, Share
from nri_plugin.notices import Notice
from nri_plugin.totals import RESOURCES
from scheduler import translate
from simgpu.lab.controlplane import ControlPlane
from tests.cluster import agent_side
from tests.cluster.agent_side import Side
from tests.cluster.server import MERGE_PATCH, Server
from tests.cluster.waiting import until
from tests.simgpu.host import GIB, Host

pytestmark = [pytest.mark.cluster, pytest.mark.sim]

Json = dict[str, Any]

DEVICES = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"


@pytest.fixture
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as admin:
        yield admin


@pytest.fixture
def host(build_dir: Path, tmp_path: Path) -> Iterator[Host]:
    """Two cards, of 8 and of 4 GiB."""
    host = Host(tmp_path / "sim", ("--card", str(8 * GIB), "--card", str(4 * GIB)), build_dir)
    host.up()
    yield host
    host.down()


class Node:
    """A node's objects, as the API server has them now."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.path = f"/api/v1/nodes/{name}"
        self._server = server

    def make(self) -> None:
        asked = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        assert self._server.ask("POST", "/api/v1/nodes", asked).done

    def get(self) -> Json:
        return self._server.ask("GET", self.path).body

    def device(self) -> Json:
        return self._server.ask("GET", f"{DEVICES}/{self.name}").body

    def lease(self) -> Json:
        return self._server.ask("GET", f"{LEASES}/agent-{self.name}").body

    def totals(self, where: str = "capacity") -> dict[str, int]:
        found = self.get().get("status", {}).get(where, {})
        return {key: int(found[key]) for key in RESOURCES if key in found}

    def ready(self) -> str:
        return str(self.lease().get("metadata", {}).get("annotations", {}).get(READY, ""))

    def have(self, totals: dict[str, int]) -> None:
        until(lambda: self.totals() == self.totals("allocatable") == totals, f"{totals}")


READY = names.ANNOTATION_READY


@pytest.fixture
def node(installed: ControlPlane, server: Server) -> Iterator[Node]:
    node = Node(server, f"n-{secrets.token_hex(4)}")
    node.make()
    yield node
    with Server(installed) as admin:
        admin.ask("DELETE", node.path)
        admin.ask("DELETE", f"{DEVICES}/{node.name}")
        admin.ask("DELETE", f"{LEASES}/agent-{node.name}")


@pytest.fixture
def account(installed: ControlPlane, node: Node) -> Path:
    """Of the agent on that node."""
    return installed.service_account_kubeconfig(names.NAMESPACE, "gpuslice-agent", node.name)


@pytest.fixture
def side(account: Path, node: Node, host: Host) -> Iterator[Side]:
    with agent_side.serving(node.name, account, host.env()) as side:
        yield side


def of_cards(*memory_bytes: int) -> dict[str, int]:
    parts = {key: 100 * len(memory_bytes) for key in RESOURCES}
    return {**parts, names.RESOURCE_MEMORY: sum(memory_bytes)}


def test_a_node_says_what_it_has_and_the_scheduler_reads_it(side: Side, node: Node) -> None:
    node.have(of_cards(8 * GIB, 4 * GIB))
    until(lambda: translate.node(node.get()).isolates, "the label")
    until(lambda: node.ready() == "true", "the Lease")
    facts = translate.device(node.device())
    assert facts.problems == ()
    assert facts.node_uid == node.get()["metadata"]["uid"]
    assert [(c.minor, c.total_bytes, c.usable) for c in facts.cards] == [
        (0, 8 * GIB, True),
        (1, 4 * GIB, True),
    ]
    lease = translate.lease(node.lease())
    assert lease is not None and (lease.node, lease.not_ready) == (node.name, "")
    until(lambda: translate.lease(node.lease()) != lease, "the Lease is renewed")


def test_what_was_changed_is_put_right(side: Side, node: Node, server: Server) -> None:
    whole = of_cards(8 * GIB, 4 * GIB)
    node.have(whole)
    zeros = {"status": {"capacity": dict.fromkeys(RESOURCES, "0")}}
    assert server.ask("PATCH", f"{node.path}/status", zeros, MERGE_PATCH).done
    node.have(whole)
    before = node.device()
    assert server.ask("DELETE", f"{DEVICES}/{node.name}").done
    until(lambda: node.device().get("spec") == before["spec"], "the Device is there again")
    spoilt: Json = {"spec": {"devices": []}}
    assert server.ask("PATCH", f"{DEVICES}/{node.name}", spoilt, MERGE_PATCH).done
    until(lambda: node.device().get("spec") == before["spec"], "the Device is as it was")


def test_a_node_of_the_same_name_is_another(side: Side, node: Node, server: Server) -> None:
    node.have(of_cards(8 * GIB, 4 * GIB))
    assert server.ask("DELETE", node.path).done
    node.make()
    uid = node.get()["metadata"]["uid"]
    node.have(of_cards(8 * GIB, 4 * GIB))
    until(lambda: translate.device(node.device()).node_uid == uid, "the Device is the new node's")


def test_the_lease_says_what_readyz_says(side: Side, node: Node) -> None:
    until(lambda: node.ready() == "true", "the Lease")
    side.readiness.session = "the container runtime is away"
    side.readiness.node = ("no card",)
    until(lambda: node.ready() == "the container runtime is away; no card", "why not")
    side.readiness.session, side.readiness.node = None, ()
    until(lambda: node.ready() == "true", "ready again")
    side.stop()
    assert node.ready() == STOPPED


class Pods:
    """Pods as users make them and our scheduler binds them."""

    def __init__(self, server: Server, scheduler: Server, namespace: str) -> None:
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._server = server
        self._scheduler = scheduler

    def bind(self, node: Node, uuid: str, minor: int, memory_bytes: int, core: int = 50) -> str:
        """The path of a pod that was bound with such an allocation."""
        name = f"p-{secrets.token_hex(4)}"
        limits = {names.RESOURCE_CORE: "50", names.RESOURCE_MEMORY_RATIO: "50"}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        spec = {"schedulerName": names.SCHEDULER_NAME, "containers": [container]}
        asked = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        answer = self._server.ask("POST", self._path, asked)
        assert answer.done, answer.text
        resources = {
            names.RESOURCE_CORE: core,
            names.RESOURCE_MEMORY: memory_bytes,
            names.RESOURCE_MEMORY_RATIO: 50,
        }
        entry = allocation.DeviceEntry(minor, resources, uuid)
        written = allocation.encode(allocation.Allocation({names.DEVICE_TYPE_GPU: (entry,)}))
        lease = self._server.ask("GET", f"{LEASES}/{names.LEASE_SCHEDULER}").body.get("spec", {})
        writer = f"{lease.get('holderIdentity', '')} {lease.get('leaseTransitions', 0)}"
        annotations = {
            names.ANNOTATION_DEVICE_ALLOCATED: written,
            names.ANNOTATION_WRITER: writer,
        }
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
        }
        answer = self._scheduler.ask("POST", f"{self._path}/{name}/binding", binding)
        assert answer.done, answer.text
        return f"{self._path}/{name}"


@pytest.fixture
def pods(installed: ControlPlane, server: Server) -> Iterator[Pods]:
    name = f"test-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", name)
    with Server(installed, "scheduler") as scheduler:
        yield Pods(server, scheduler, name)
    installed.remove_namespace(name)


def test_a_card_that_fails_counts_while_somebody_holds_it(
    side: Side, node: Node, server: Server, host: Host, pods: Pods
) -> None:
    node.have(of_cards(8 * GIB, 4 * GIB))
    (lost,) = (c for c in translate.device(node.device()).cards if c.minor == 1)
    pod = pods.bind(node, lost.uuid, 1, 2 * GIB)
    host.fault("lose", card=1)

    def usable() -> list[bool]:
        return [card.usable for card in translate.device(node.device()).cards]

    until(lambda: usable() == [True, False], "the card is listed as unhealthy")
    node.have(of_cards(8 * GIB, 4 * GIB))
    assert server.ask("DELETE", f"{pod}?gracePeriodSeconds=0").done
    until(lambda: usable() == [True], "nobody needs it to be listed any more")
    node.have(of_cards(8 * GIB))


# --- pods whose grant is not to be had


def leaving(server: Server, pod: str) -> bool:
    return "deletionTimestamp" in server.ask("GET", pod).body["metadata"]


def events(server: Server, pod: str) -> list[str]:
    """What a pod's events say, the node's agent's."""
    namespace, _, name = pod.removeprefix("/api/v1/namespaces/").partition("/pods/")
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    listed = server.ask("GET", path).body["items"]
    return [
        each["note"]
        for each in listed
        if each["regarding"]["name"] == name and each["reason"] == names.EVENT_GRANT_REFUSED
    ]


def small_card(node: Node) -> str:
    node.have(of_cards(8 * GIB, 4 * GIB))
    (card,) = (c for c in translate.device(node.device()).cards if c.minor == 1)
    return card.uuid


def test_who_was_bound_to_a_full_card_goes_and_learns_why(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    uuid = small_card(node)
    first, second, late, small = (
        pods.bind(node, uuid, 1, size, core=30) for size in (2 * GIB, 2 * GIB, GIB, GIB // 2)
    )
    until(lambda: leaving(server, late) and leaving(server, small), "both late ones are removed")
    (said,) = events(server, late)
    assert said.startswith(f"gpuslice removes the pod: card {uuid} was full when the pod was bound")
    assert f"it was granted {GIB} bytes of memory, 0 of {4 * GIB} were left" in said
    for pod in (first, second):
        assert not leaving(server, pod)
        assert events(server, pod) == []
    # With room again, the next one stays.
    assert server.ask("DELETE", f"{first}?gracePeriodSeconds=0").done
    for pod in (late, small):
        server.ask("DELETE", f"{pod}?gracePeriodSeconds=0")
    third = pods.bind(node, uuid, 1, 2 * GIB, core=30)
    fourth = pods.bind(node, uuid, 1, 1, core=30)
    until(lambda: leaving(server, fourth), "the one behind it is removed")
    assert not leaving(server, third)
    assert side.metrics.pods_removed.labels("GRANT_OVERFILLS")._value.get() == 3


def test_the_order_of_binding_outlives_the_agent(
    account: Path, node: Node, host: Host, server: Server, pods: Pods
) -> None:
    """Bound while no agent looked, and in different seconds."""
    with agent_side.serving(node.name, account, host.env()):
        uuid = small_card(node)
    first = pods.bind(node, uuid, 1, 3 * GIB)
    time.sleep(1.1)  # the API server writes down when a pod was bound to the second
    second = pods.bind(node, uuid, 1, 3 * GIB)
    with agent_side.serving(node.name, account, host.env()):
        until(lambda: leaving(server, second), "the later one is removed")
        assert not leaving(server, first)


def of_pod(server: Server, path: str, uuid: str, memory_bytes: int) -> Hold:
    metadata = server.ask("GET", path).body["metadata"]
    pod = Pod(metadata["uid"], metadata["namespace"], metadata["name"])
    return ledger.hold("c0ffee", "c0ffee", False, pod, "main", [Share(uuid, 1, memory_bytes, 50)])


def test_a_container_with_more_than_its_pod_was_granted(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    uuid = small_card(node)
    honest, other = pods.bind(node, uuid, 1, GIB), pods.bind(node, uuid, 1, GIB)
    side.holds = (of_pod(server, honest, uuid, GIB), of_pod(server, other, uuid, 2 * GIB))
    until(lambda: leaving(server, other), "its pod is removed")
    (said,) = events(server, other)
    assert "the API server does not confirm what the pod was granted" in said
    assert f"has {2 * GIB} bytes and 50 percent of card {uuid}, granted are {GIB} and 50" in said
    assert not leaving(server, honest)


def test_a_container_of_no_pod_is_told(side: Side, node: Node, pods: Pods) -> None:
    uuid = small_card(node)
    unconfirmed = side.metrics.unconfirmed._value
    assert unconfirmed.get() == 0
    pod = Pod("nobody", "default", "nobody")
    side.holds = (ledger.hold("c", "c", False, pod, "main", [Share(uuid, 1, GIB, 50)]),)
    until(lambda: unconfirmed.get() == 1, "it is counted")
    side.holds = ()
    until(lambda: unconfirmed.get() == 0, "it is gone")


def test_what_a_pods_author_should_know_is_an_event(
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

    def told() -> list[Json]:
        return list(server.ask("GET", events).body["items"])

    until(lambda: bool(told()), "the event")
    (said,) = told()
    assert (said["regarding"]["uid"], said["reason"]) == (pod.uid, reason)
    assert said["note"].startswith("static\\nxxx") and len(said["note"]) == 1000
    until(lambda: side.notices.first() is None, "nothing waits")


def test_an_agent_removes_pods_of_its_own_node_alone(
    installed: ControlPlane, server: Server, account: Path, node: Node, pods: Pods
) -> None:
    other = Node(server, f"{node.name}-other")
    other.make()
    theirs, ours = pods.bind(other, "GPU-0", 0, GIB), pods.bind(node, "GPU-0", 0, GIB)
    token = yaml.safe_load(account.read_text())["users"][0]["user"]["token"]
    with Server(installed, token=token) as agent:
        answer = agent.ask("DELETE", theirs)
        assert answer.policy == "gpuslice-removals"
        assert answer.text == (
            f"spec.nodeName: '{other.name}': the pod would be removed by an agent of node"
            f" {node.name}, which may remove its own alone"
        )
        assert agent.ask("DELETE", ours).done
    server.ask("DELETE", other.path)


def test_without_an_answer_it_goes_on_and_makes_up_for_it(
    side: Side, node: Node, installed: ControlPlane
) -> None:
    node.have(of_cards(8 * GIB, 4 * GIB))
    until(lambda: side.metrics.api_up._value.get() == 1, "it is heard")
    installed.apiserver.kill()
    until(lambda: side.metrics.api_up._value.get() == 0, "nobody answers")
    side.readiness.node = ("no card",)
    installed.restart_apiserver()
    with Server(installed) as again:
        node = Node(again, node.name)
        until(lambda: node.ready() == "no card", "the Lease is renewed")
        until(lambda: side.metrics.api_up._value.get() == 1, "it is heard again")
        zeros = {"status": {"capacity": dict.fromkeys(RESOURCES, "0")}}
        assert again.ask("PATCH", f"{node.path}/status", zeros, MERGE_PATCH).done
        node.have(of_cards(8 * GIB, 4 * GIB))
