"""The scheduler as installed: binding, takeover, and observability."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab import pages
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from scheduler.events import NODE_PROBLEM, POD_PROBLEM, SECOND_INSTALLATION
from tests.cluster.admission import scheduler_lease
from tests.cluster.running import Pods, keeps, leader, probed, replica, running
from tests.requests.pods import Json, asking, binding, pod
from tests.support import run, until

pytestmark = pytest.mark.cluster

_BETWEEN: Final = ',"Nodes":null,"NodeNames":['
_RECORDED: Final = ("filter", "prioritize")


@pytest.fixture
def nodes(installed: ControlPlane) -> Iterator[Fleet]:
    with Fleet(installed, Shape(nodes=3, gpus=2, prefix="service-").all_nodes()) as fleet:
        yield fleet


@pytest.fixture
def plane(installed: ControlPlane, nodes: Fleet) -> Iterator[ControlPlane]:
    scheduler_lease.delete(installed)
    yield installed
    scheduler_lease.delete(installed)


class _Pods(Pods):
    def create(self, ratio: int = 40) -> str:
        return self.add(self.manifest(ratio))

    def create_bound(self, ratio: int = 40) -> Json:
        return self.bound(self.create(ratio))

    def manifest(self, ratio: int) -> Json:
        asked = {names.RESOURCE_MEMORY_RATIO: ratio, names.RESOURCE_CORE: ratio}
        return pod(asking(asked), name=f"pod-{secrets.token_hex(4)}")


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[_Pods]:
    with _Pods(plane) as made:
        yield made


def _assumed(replica: Installation) -> dict[str, bool]:
    """Return for each pod that holds a share whether its Binding is assumed, not yet observed."""
    nodes = json.loads(replica.ask("/debug/fleet")[1])["nodes"]
    holders = (each for node in nodes for gpu in node["gpus"] for each in gpu["holders"])
    return {each["pod"].removeprefix("default/"): each["assumed"] for each in holders}


def _value(replica: Installation, metric: str) -> float | None:
    for line in replica.ask("/metrics")[1].splitlines():
        if line.startswith(metric + " "):
            return float(line.rpartition(" ")[2])
    return None


def test_a_pod_is_bound_with_its_gpu_by_one_write_and_one_event(
    plane: ControlPlane, pods: _Pods
) -> None:
    """kube-scheduler writes the only event of a Binding. A pod without a share gets no grant."""
    with running(plane, "a", module="tests.cluster.recorded") as one:
        one.wait_binds()  # until then kube-scheduler writes an event for each refusal
        plain = pods.bound(pods.add(pod(name="plain")))
        assert names.ANNOTATION_GRANTS not in plain["metadata"].get("annotations", {})
        bound = pods.create_bound()
        name, annotations = bound["metadata"]["name"], bound["metadata"]["annotations"]
        allocated = json.loads(annotations[names.ANNOTATION_DEVICE_ALLOCATED])
        assert allocated["gpu"][0]["resources"][names.RESOURCE_MEMORY_RATIO] == "40"
        writer = annotations[names.ANNOTATION_WRITER]
        assert f"this process binds: {writer} of this pod holds" in one.ask("/readyz")[1]
        until(lambda: bool(pods.events(name)), "its event is written")
        until(lambda: _assumed(one) == {name: False}, "it is seen bound")
        assert [reason for reason, _ in pods.events(name)] == ["Scheduled"]
    _have_the_format_of_go(one.extender.log.read_text())


def _have_the_format_of_go(log: str) -> None:
    """Check the bytes of kube-scheduler's calls. The extender splits a call at `_BETWEEN`. It
    decodes a pod once, because `filter` and `prioritize` send the same bytes of the pod."""
    lines = [line.partition(" ") for line in log.splitlines()]
    calls = {verb: [call for of, _, call in lines if of == verb] for verb in _RECORDED}
    for call in (each for verb in _RECORDED for each in calls[verb]):
        assert (call[:18], call.count(_BETWEEN), call[-3:]) == ('{"Pod":{"metadata"', 1, '"]}')
    filtered, prioritized = (
        {call.partition(_BETWEEN)[0] for call in calls[verb]} for verb in _RECORDED
    )
    assert set() < prioritized <= filtered


def test_after_a_compaction_the_extender_relists_without_deleted_pods(
    plane: ControlPlane, pods: _Pods
) -> None:
    """A terminating pod holds its GPU until it is deleted."""
    with replica(plane, "a") as one:
        slow = pods.create_bound()["metadata"]["name"]
        pods.delete(slow, "--grace-period=600", "--wait=false")
        after = pods.create_bound()["metadata"]["name"]
        # Events come in order: the extender saw the deletion before the later Binding.
        until(lambda: _assumed(one) == {slow: False, after: False}, "both are seen bound")
        metric = 'gpuslice_scheduler_lists_total{kind="pods"}'
        lists = _value(one, metric)
        assert lists is not None
        with one.extender.frozen():
            plane.restart_apiserver()  # this ends the extender's watches, so it gets no event
            pods.delete(slow, "--force", "--grace-period=0")
            _compact(plane)
            plane.restart_apiserver()  # this discards the events in the server's watch cache
        until(lambda: _assumed(one) == {after: False}, "the deleted pod holds nothing")
        until(lambda: (_value(one, metric) or 0) > lists, "the pods are listed again")


def _compact(plane: ControlPlane) -> None:
    def etcd(path: str, body: object) -> Any:
        return json.loads(pages.get(plane.etcd_socket, path, posted=json.dumps(body))[1])

    now = etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    etcd("/v3/kv/compaction", {"revision": now, "physical": True})


def test_a_simulation_of_the_cluster_sees_what_is_held(plane: ControlPlane, pods: _Pods) -> None:
    """The simulation runs with the scheduler's rights. It predicts the GPU of the next Binding."""
    with replica(plane, "a"):
        pods.create_bound(60)
        asked = {**pods.manifest(60), "metadata": {"name": "next"}}
        kubeconfig = f"--kubeconfig={plane.kubeconfig('scheduler')}"
        command = (sys.executable, "-m", "scheduler", "simulate", "--from-cluster", "--json")
        done = run(*command, "-f", "-", kubeconfig, input=json.dumps(asked))
        assert done.returncode == 0, done.stderr
        (account,) = json.loads(done.stdout)
        bound = pods.create_bound(60)
        assert bound["spec"]["nodeName"] == account["node"]
        simulated = account["candidates"][0]["containers"][0]["uuid"]
        assert simulated in bound["metadata"]["annotations"][names.ANNOTATION_GRANTS]


def test_problems_of_a_pod_and_a_node_become_events(
    plane: ControlPlane, nodes: Fleet, pods: _Pods
) -> None:
    nodes.set_ready("service-0001", "the driver is away")
    name = pods.create()
    unreadable = binding(name, "service-0002", {names.ANNOTATION_GRANTS: "{"})
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    given = json.dumps(unreadable)
    plane.kubectl("create", "--raw", path, "-f", "-", user="scheduler", given=given)
    with replica(plane, "a"):
        pods.create_bound()
        for kind, about, reason, text in (
            ("pod", name, POD_PROBLEM, f"annotation {names.ANNOTATION_GRANTS}: not JSON"),
            ("node", "service-0001", NODE_PROBLEM, "node agent: the driver is away"),
        ):
            until(partial(pods.has_event, about, text), f"{about} has its event")
            assert any(of == reason and said.startswith(text) for of, said in pods.events(about))
            assert reason in plane.kubectl("describe", kind, about)


def test_an_agent_that_is_ready_again_has_the_waiting_pod_tried(
    plane: ControlPlane, nodes: Fleet, pods: _Pods
) -> None:
    """Only the extender notices the agent. kube-scheduler itself would retry after five minutes."""
    for node in nodes.nodes:
        nodes.set_ready(node, "the library is not there")
    with replica(plane, "a") as one:
        until(lambda: 'reason="AGENT_NOT_READY"} 3.0' in one.ask("/metrics")[1], "that is seen")
        name = pods.create()
        refusal = "GPU node agent is not ready"
        until(lambda: pods.has_event(name, refusal), "the pod is refused")
        nodes.set_ready(next(iter(nodes.nodes)))
        until(lambda: pods.is_bound(name), "the pod is bound", 60.0)
        assert names.ANNOTATION_REQUEUED_AT in pods.get(name)["metadata"]["annotations"]
        metric = 'gpuslice_scheduler_requeued_pods_total{cause="capacity"} 1.0'
        assert metric in one.ask("/metrics")[1]


def test_the_extender_beside_the_leading_kube_scheduler_binds(
    plane: ControlPlane, pods: _Pods
) -> None:
    """The leader's kube-scheduler is killed twice, its extender once. Then both are stopped."""
    with replica(plane, "a") as first, replica(plane, "b") as second:
        pods.create_bound()
        holder, other = leader(first, second)
        status, text = other.ask("/readyz")
        assert status == 200 and "on standby" in text
        for _ in range(2):
            holder.kube_scheduler.kill()
            pods.create_bound(10)
            until(partial(attrgetter("binds"), other), "the other one binds")
            assert not holder.binds
            holder.start_kube_scheduler()
            holder, other = other, holder
        holder.extender.kill()
        holder.start_extender()
        pods.create_bound()
        for process in (holder.kube_scheduler, holder.extender):
            process.stop(signal.SIGTERM)
        assert "msg=stopped" in holder.extender.log.read_text()
        pods.create_bound()
        assert other.binds


def test_none_is_preempted_by_a_process_that_may_not_write(
    plane: ControlPlane, pods: _Pods
) -> None:
    """The answer 503 is an error to kube-scheduler. An answer without nodes would be no error."""
    with replica(plane, "a") as first, replica(plane, "z", elects=False):
        whole = {pods.create_bound(100)["metadata"]["name"] for _ in range(6)}
        first.stop()
        urgent = pods.manifest(50)
        urgent["spec"]["priorityClassName"] = "system-node-critical"
        name = pods.add(urgent)
        until(lambda: pods.has_event(name, "/preempt, code 503"), "kube-scheduler is refused")
        assert pods.live() == {name, *whole}


def test_a_leader_whose_extender_does_not_start_stops_leading(
    plane: ControlPlane, pods: _Pods
) -> None:
    """kube-scheduler by itself would keep its Lease and refuse all pods. The test acts as the
    kubelet: it restarts kube-scheduler by the chart's probe. The probe passes again once the
    extender is back."""

    def lease() -> tuple[str, str]:
        where = ("lease", names.LEASE_KUBE_SCHEDULER, f"-n={names.NAMESPACE}")
        spec = json.loads(plane.kubectl("get", *where, "-o=json"))["spec"]
        return spec["holderIdentity"], spec["renewTime"]

    with replica(plane, "a") as first, replica(plane, "b") as second:
        pods.create_bound()
        holder, other = leader(first, second)
        assert keeps(holder, "kube-scheduler") and keeps(holder, "extender")
        holder.extender.stop()
        name, (led, renewed) = pods.create(), lease()
        until(lambda: pods.has_event(name, "connection refused"), "kube-scheduler refuses the pod")
        until(lambda: lease()[1] > renewed, "it renews its Lease")
        assert lease()[0] == led and not pods.is_bound(name)

        assert not keeps(holder, "kube-scheduler") and keeps(other, "kube-scheduler")
        holder.kube_scheduler.stop()

        def is_bound() -> bool:
            other.restart_exited()
            return pods.is_bound(name)

        until(is_bound, "the other one binds the pod")
        assert other.binds and lease()[0] not in ("", led)
        holder.restart_exited()
        until(lambda: keeps(holder, "kube-scheduler"), "it may run again")
        assert other.binds


def test_a_halted_kube_scheduler_is_restarted_and_the_other_replica_binds(
    plane: ControlPlane, pods: _Pods
) -> None:
    """Its extender answers the chart's probe, and fails it. The test restarts it as the kubelet
    does after the last probe."""
    with replica(plane, "a") as first, replica(plane, "b") as second:
        pods.create_bound()
        holder, other = leader(first, second)
        with holder.kube_scheduler.frozen():
            pods.create_bound()
            until(partial(attrgetter("binds"), other), "the other one binds")
            assert not probed(holder, "kube-scheduler")
            assert keeps(holder, "extender") and keeps(other, "kube-scheduler")
            holder.kube_scheduler.kill()
        holder.restart_exited()
        until(lambda: keeps(holder, "kube-scheduler"), "it may run again")
        assert other.binds and not holder.binds
        pods.create_bound(10)


def test_a_second_installation_binds_nothing_and_reports_it(
    plane: ControlPlane, pods: _Pods
) -> None:
    with replica(plane, "a") as first, replica(plane, "z", elects=False) as second:
        until(lambda: first.binds, "the one whose kube-scheduler holds the Lease binds")
        status, text = second.ask("/readyz")
        assert status == 200 and "on standby; a_" in text
        for _ in range(6):
            pods.create_bound(60)
        # the pod fits nowhere, so kube-scheduler keeps calling both extenders
        name = pods.create(60)
        until(lambda: pods.has_event(name, "on standby; a_"), "the pod's events name the binder")
        metric = "gpuslice_scheduler_second_installation"
        until(lambda: _value(second, metric) == 1, "the metric says so")
        assert _value(first, metric) == 0
        until(lambda: "second installation" in second.extender.log.read_text(), "it is logged")
        where = ("get", "events", f"-n={names.NAMESPACE}", "-o=jsonpath={.items[*].reason}")
        until(lambda: SECOND_INSTALLATION in plane.kubectl(*where), "the Lease has an event")
