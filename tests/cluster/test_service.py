"""The scheduler as installed, with the stock kube-scheduler and the manifests' rights: binding,
takeover, and observability."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from scheduler.events import NODE_PROBLEM, POD_PROBLEM, SECOND_INSTALLATION
from tests.cluster.admission import scheduler_lease
from tests.cluster.running import Pods, holds, keeps, replica
from tests.requests.pods import asking, pod
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster


@pytest.fixture
def nodes(installed: ControlPlane) -> Iterator[Fleet]:
    """Three, of two GPUs each."""
    with Fleet(installed, Shape(nodes=3, gpus=2, prefix="service-").all_nodes()) as fleet:
        yield fleet


@pytest.fixture
def plane(installed: ControlPlane, nodes: Fleet) -> Iterator[ControlPlane]:
    """Yield a control plane with nodes, and without a Lease."""
    scheduler_lease.delete(installed)
    yield installed
    scheduler_lease.delete(installed)


class _Pods(Pods):
    def create(self, ratio: int = 40) -> str:
        return self.add(self.manifest(ratio))

    def manifest(self, ratio: int) -> dict[str, Any]:
        asked = {names.RESOURCE_MEMORY_RATIO: ratio, names.RESOURCE_CORE: ratio}
        return pod(asking(asked), name=f"pod-{secrets.token_hex(4)}")


@pytest.fixture
def pods(plane: ControlPlane) -> Iterator[_Pods]:
    with _Pods(plane) as made:
        yield made


def test_a_pod_is_bound_with_its_gpu_by_one_write_and_one_event(
    plane: ControlPlane, pods: _Pods
) -> None:
    """kube-scheduler writes the event for a pod that the extender has bound; the extender writes
    none."""
    with replica(plane, "a") as one:
        one.wait_binds()  # before, kube-scheduler writes an event of the refusal
        name = pods.create()
        bound = pods.bound(name)
        annotations = bound["metadata"]["annotations"]
        allocated = json.loads(annotations[names.ANNOTATION_DEVICE_ALLOCATED])
        assert allocated["gpu"][0]["resources"][names.RESOURCE_MEMORY_RATIO] == "40"
        writer = annotations[names.ANNOTATION_WRITER]
        assert f"this process binds: {writer} of this pod holds" in one.ask("/readyz")[1]
        until(lambda: bool(pods.events(name)), "its event is written")
        until(lambda: _value(one, "gpuslice_scheduler_assumed_pods") == 0, "it is seen bound")
        assert [reason for reason, _ in pods.events(name)] == ["Scheduled"]
        held = json.loads(one.ask(f"/debug/fleet?node={bound['spec']['nodeName']}")[1])
        holders = [h["pod"] for gpu in held["nodes"][0]["gpus"] for h in gpu["holders"]]
        assert holders == [f"default/{name}"]


def test_a_simulation_of_the_cluster_sees_what_is_held(plane: ControlPlane, pods: _Pods) -> None:
    """The simulation has the scheduler's rights. It shows the GPUs of the following Binding."""
    with replica(plane, "a"):
        pods.bound(pods.create(60))
        asked = {**pods.manifest(60), "metadata": {"name": "next"}}
        kubeconfig = str(plane.kubeconfig("scheduler"))
        command = [sys.executable, "-m", "scheduler", "simulate", "--from-cluster", "--json"]
        done = subprocess.run(
            [*command, "-f", "-", "--kubeconfig", kubeconfig],
            input=json.dumps(asked),
            text=True,
            capture_output=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        (account,) = json.loads(done.stdout)
        bound = pods.bound(pods.create(60))
        assert bound["spec"]["nodeName"] == account["node"]
        simulated = account["candidates"][0]["containers"][0]["uuid"]
        assert simulated in bound["metadata"]["annotations"][names.ANNOTATION_GRANTS]


def test_problems_of_a_pod_and_a_node_become_events(
    plane: ControlPlane, nodes: Fleet, pods: _Pods
) -> None:
    nodes.set_ready("service-0001", "the driver is away")
    name = pods.create()
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": {names.ANNOTATION_GRANTS: "{"}},
        "target": {"name": "service-0002"},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    given = json.dumps(binding)
    plane.kubectl("create", "--raw", path, "-f", "-", user="scheduler", given=given)
    with replica(plane, "a"):
        pods.bound(pods.create())
        of_pod = (POD_PROBLEM, f"annotation {names.ANNOTATION_GRANTS}: not JSON")
        of_node = (NODE_PROBLEM, "node agent: the driver is away")
        for kind, about, (reason, words) in (
            ("pod", name, of_pod),
            ("node", "service-0001", of_node),
        ):
            until(
                lambda on=about, why=reason, text=words: any(  # type: ignore[misc]
                    found == why and said.startswith(text) for found, said in pods.events(on)
                ),
                f"{about} has its event",
            )
            assert reason in plane.kubectl("describe", kind, about)


def test_an_agent_that_is_ready_again_has_the_waiting_pod_tried(
    plane: ControlPlane, nodes: Fleet, pods: _Pods
) -> None:
    """Only the extender observes it. kube-scheduler by itself retries after five minutes."""
    for node in nodes.nodes:
        nodes.set_ready(node, "the library is not there")
    with replica(plane, "a") as one:
        until(lambda: 'reason="AGENT_NOT_READY"} 3.0' in one.ask("/metrics")[1], "that is seen")
        name = pods.create()
        until(
            lambda: any("GPU node agent is not ready" in said for _, said in pods.events(name)),
            "the pod is refused",
        )
        nodes.set_ready(next(iter(nodes.nodes)))
        until(lambda: pods.is_bound(name), "the pod is bound", 60.0)
        assert names.ANNOTATION_REQUEUED_AT in pods.get(name)["metadata"]["annotations"]
        metric = 'gpuslice_scheduler_requeued_pods_total{cause="capacity"} 1.0'
        assert metric in one.ask("/metrics")[1]


def test_the_extender_beside_the_leading_kube_scheduler_binds(
    plane: ControlPlane, pods: _Pods
) -> None:
    with replica(plane, "a") as first, replica(plane, "b") as second:
        pods.bound(pods.create())
        until(lambda: holds(first) or holds(second), "one of them binds")
        holder, other = (first, second) if holds(first) else (second, first)
        status, text = other.ask("/readyz")
        assert status == 200 and "on standby" in text
        for _ in range(2):
            holder.kube_scheduler.kill()
            pods.bound(pods.create(10))
            until(lambda new=other: holds(new), "the other one binds")  # type: ignore[misc]
            assert not holds(holder)
            holder.start_kube_scheduler()
            holder, other = other, holder


def test_a_leader_whose_extender_does_not_start_stops_leading(
    plane: ControlPlane, pods: _Pods
) -> None:
    """kube-scheduler by itself renews its Lease and refuses all pods. The test acts as the kubelet,
    which restarts kube-scheduler by the chart's probe; the probe passes when the extender is back.
    """

    def lease() -> tuple[str, str]:
        where = ("lease", names.LEASE_KUBE_SCHEDULER, f"-n={names.NAMESPACE}")
        spec = json.loads(plane.kubectl("get", *where, "-o=json"))["spec"]
        return spec["holderIdentity"], spec["renewTime"]

    with replica(plane, "a") as first, replica(plane, "b") as second:
        pods.bound(pods.create())
        until(lambda: holds(first) or holds(second), "one of them binds")
        leader, other = (first, second) if holds(first) else (second, first)
        assert keeps(leader, "kube-scheduler") and keeps(leader, "extender")
        leader.extender.stop()
        name, (led, renewed) = pods.create(), lease()
        until(
            lambda: any("connection refused" in words for _, words in pods.events(name)),
            "kube-scheduler refuses the pod",
        )
        until(lambda: lease()[1] > renewed, "it renews its Lease")
        assert lease()[0] == led and not pods.is_bound(name)

        assert not keeps(leader, "kube-scheduler") and keeps(other, "kube-scheduler")
        leader.kube_scheduler.stop()

        def is_bound() -> bool:
            other.restart_exited()
            return pods.is_bound(name)

        until(is_bound, "the other one binds the pod")
        assert holds(other) and lease()[0] not in ("", led)
        leader.restart_exited()
        until(lambda: keeps(leader, "kube-scheduler"), "it may run again")
        assert holds(other)


def test_an_extender_that_is_killed_is_replaced_in_place(plane: ControlPlane, pods: _Pods) -> None:
    with replica(plane, "a") as one:
        pods.bound(pods.create())
        one.extender.kill()
        one.start_extender()
        pods.bound(pods.create())


def test_after_both_are_stopped_the_other_replica_binds(plane: ControlPlane, pods: _Pods) -> None:
    with replica(plane, "a") as one:
        pods.bound(pods.create())
        with replica(plane, "b") as other:
            for process in (one.kube_scheduler, one.extender):
                process.stop(signal.SIGTERM)
            assert "msg=stopped" in one.extender.log.read_text()
            pods.bound(pods.create())
            assert holds(other)


def test_a_second_installation_binds_nothing_and_reports_it(
    plane: ControlPlane, pods: _Pods
) -> None:
    with replica(plane, "a") as first, replica(plane, "z", elects=False) as second:
        until(lambda: holds(first), "the one whose kube-scheduler holds the Lease binds")
        status, text = second.ask("/readyz")
        assert status == 200 and "on standby; a_" in text
        metric = "gpuslice_scheduler_second_installation"
        for _ in range(6):
            pods.bound(pods.create(60))
        name = pods.create(60)  # it fits nowhere, so both continue to receive calls

        def is_reported() -> bool:
            said = [words for _, words in pods.events(name)]
            return any("on standby; a_" in words for words in said)

        until(is_reported, "the pod's events name the binder")
        until(lambda: _value(second, metric) == 1, "the metric says so")
        assert _value(first, metric) == 0
        until(lambda: "second installation" in second.extender.log.read_text(), "it is logged")
        where = ("get", "events", f"-n={names.NAMESPACE}", "-o=jsonpath={.items[*].reason}")
        until(
            lambda: SECOND_INSTALLATION in plane.kubectl(*where), "there is an event of the Lease"
        )


def _value(replica: Installation, metric: str) -> float | None:
    for line in replica.ask("/metrics")[1].splitlines():
        if line.startswith(metric + " "):
            return float(line.rpartition(" ")[2])
    return None
