"""The whole chain: the chart's policy, KAI's Queues, the leader's controller, Kueue, kube-scheduler
and the extender."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from lab.cluster.installation import Installation
from lab.cluster.kueue import Kueue
from scheduler.queues import kueue, tree
from tests.cluster.server import Server
from tests.queues.conftest import CHART, NAMESPACE
from tests.queues.kai import Q
from tests.requests.pods import asking, pod
from tests.support import ROOT, run, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
_SEEDS_QUEUES: Final = ROOT / "tests" / "dialects" / "recorded" / "kai-queues.yaml"
_SEEDS_POD: Final = ROOT / "docs" / "examples" / "kai" / "gpu-pod.yaml"
_MEMORY: Final = 23040 << 20
_GPUS: Final = Shape(nodes=1, gpus=4, memory_bytes=_MEMORY, prefix="queued-")
_SIX: Final = Shape(nodes=1, gpus=6, memory_bytes=_MEMORY, prefix="spread-")
_MORE: Final = Shape(nodes=1, gpus=2, memory_bytes=_MEMORY, prefix="later-")
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
_QUEUES: Final = "/apis/scheduling.run.ai/v2/queues"
_KUEUE: Final = f"/apis/{kueue.API_VERSION}"
_FORCE: Final = "gracePeriodSeconds=0"


class Cluster:
    """The pods and queues of a control plane."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def queue(self, *queues: Q) -> None:
        for each in queues:
            self.server.make(_QUEUES, each.raw())

    def pod(self, name: str, queue: str, percent: int = 100) -> str:
        shares = {names.RESOURCE_CORE: percent, names.RESOURCE_MEMORY_RATIO: percent}
        labels = {names.LABEL_KAI_QUEUE: queue}
        self.server.make(_PODS, pod(asking(shares), name=name, labels=labels))
        return name

    def delete(self, *pods: str) -> None:
        for each in pods:
            self.server.ask("DELETE", f"{_PODS}/{each}?{_FORCE}")

    def spec(self, name: str) -> Json:
        return dict(self.server.get(f"{_PODS}/{name}")["spec"])

    def is_bound(self, name: str) -> bool:
        return bool(self.spec(name).get("nodeName"))

    def status(self, queue: str) -> Json:
        return dict(self.server.get(f"{_QUEUES}/{queue}").get("status", {}))

    def allocated(self, queue: str) -> str:
        return str(self.status(queue).get("allocated", {}).get("nvidia.com/gpu", "0"))

    def reason(self, queue: str) -> str:
        conditions = self.status(queue).get("conditions", ())
        return next((str(each["reason"]) for each in conditions if each["type"] == "Ready"), "")

    def notes(self, name: str) -> list[str]:
        return [
            each["message"]
            for each in self.server.get(_EVENTS)["items"]
            if each["involvedObject"].get("name") == name and each["reason"].startswith("GPUQueue")
        ]

    def nominal(self, kind: str, name: str) -> str:
        answer = self.server.ask("GET", f"{_KUEUE}/{kueue.PLURALS[kind]}/{name}")
        groups = answer.body["spec"]["resourceGroups"] if answer.done else ()
        return "".join(str(e["flavors"][0]["resources"][0]["nominalQuota"]) for e in groups)


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, running_kueue: Kueue) -> Iterator[Cluster]:
    """Run gpuslice's scheduler with queues, on a node with four GPUs."""
    (config,) = (
        each["data"][manifests.CONFIG_FILE]
        for each in manifests.serving([names.SCHEDULER_NAME], *CHART)
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", manifests.CONFIG_MAP)
    )
    arguments = ("--queues", "--dialects=koordinator,kai")
    with (
        Fleet(plane, _GPUS.all_nodes()),
        Installation(plane, yaml.safe_load(config), arguments=arguments) as started,
        Server(plane) as server,
    ):
        started.wait_binds()
        plane.kubectl("apply", "-f", _SEEDS_QUEUES)
        probe = yaml.safe_load(_SEEDS_POD.read_text())
        until(lambda: counted(server, probe) == "87", "the policy counts by the size of the GPUs")
        yield Cluster(server)


def counted(server: Server, raw: Json) -> str:
    answer = server.ask("POST", f"{_PODS}?dryRun=All", raw)
    assert answer.done, answer.text
    limits = answer.body["spec"]["containers"][0]["resources"].get("limits", {})
    return str(limits.get(names.RESOURCE_MILLI))


def test_the_seeds_pod_runs_in_its_queue(cluster: Cluster) -> None:
    """Its 2000 of 23040 MiB are 87 thousandths. Neither the pod nor the Queues are changed."""
    cluster.server.make(_PODS, yaml.safe_load(_SEEDS_POD.read_text()))
    until(lambda: cluster.is_bound("gpu-pod"), "the pod is bound")
    until(lambda: cluster.allocated("test") == "87m", "the queue's status has the pod")
    until(lambda: cluster.allocated("default") == "87m", "the parent's status has the pod")
    assert cluster.reason("test") == "Served"
    cluster.delete("gpu-pod")
    until(lambda: cluster.allocated("default") == "0", "the status follows")


def test_a_pod_beyond_a_limit_waits_and_runs_once_there_is_room(cluster: Cluster) -> None:
    cluster.queue(Q("capped", 0, 1, parent="default"))
    first = cluster.pod("first", "capped", 70)
    until(lambda: cluster.is_bound(first), "the first is bound")
    second = cluster.pod("second", "capped", 40)
    until(lambda: cluster.notes(second), "an event says what the second waits for")
    (note,) = cluster.notes(second)
    assert note == (
        "waits in queue capped and requests 0.4 GPUs; capped's limit is 1 GPU, and 0.7 in use"
    )
    assert cluster.spec(second)["schedulingGates"]
    cluster.delete(first)
    begun_s = time.monotonic()
    until(lambda: cluster.is_bound(second), "the second is bound")
    assert time.monotonic() - begun_s < 5
    cluster.delete(second)


def test_a_queue_with_pods_that_breaks_or_gets_a_child_keeps_its_limit(cluster: Cluster) -> None:
    """Neither waits until its last pod ends, and no pod runs beyond the limit."""
    turn = Q("turn", 1, 1, parent="default")
    cluster.queue(turn)
    first = cluster.pod("turn-first", "turn", 60)
    until(lambda: cluster.is_bound(first), "the first is bound")

    def write(queue: Q) -> None:
        assert cluster.server.patch(f"{_QUEUES}/turn", queue.raw()).done

    write(replace(turn, quota=-5))
    until(lambda: cluster.reason("turn") == "InvalidSpec", "the Queue says so")
    until(lambda: cluster.nominal("ClusterQueue", "turn") == "0", "its ClusterQueue is held")
    second = cluster.pod("turn-second", "turn", 40)
    until(lambda: cluster.notes(second), "an event says so")
    assert cluster.allocated("turn") == "600m"
    assert cluster.spec(second)["schedulingGates"]
    write(turn)
    until(lambda: cluster.is_bound(second), "the mended Queue goes on, beside the first pod")

    cluster.queue(Q("turned", 1, 1, parent="turn"))
    until(lambda: cluster.nominal("ClusterQueue", "turned"), "the child is served")
    third = cluster.pod("turn-third", "turned", 50)
    until(lambda: cluster.notes(third), "an event says what the third waits for")
    (note,) = cluster.notes(third)
    assert note.endswith("turn's limit is 1 GPU, and 1 in use")
    assert cluster.spec(third)["schedulingGates"]
    cluster.delete(first)
    until(lambda: cluster.is_bound(third), "there is room for the third")
    until(lambda: cluster.allocated("turn") == "900m", "the status has both")
    cluster.delete(second, third)
    until(lambda: not cluster.nominal("ClusterQueue", "turn"), "the empty ClusterQueue is removed")
    for name in ("turned", "turn"):
        cluster.server.remove(f"{_QUEUES}/{name}")


def test_capacity_follows_the_nodes(plane: ControlPlane, cluster: Cluster) -> None:
    cluster.queue(Q("half", 2))

    def half() -> str:
        return cluster.nominal("ClusterQueue", "half")

    until(lambda: half() == "1333", "4 GPUs are shared by quotas of 4 and 2")
    with Fleet(plane, _MORE.all_nodes()):
        until(lambda: half() == "1500", "6 GPUs are shared by quotas of 6 and 2")
    until(lambda: half() == "1333", "the node's GPUs are gone")
    assert cluster.nominal("Cohort", tree.ROOT) == "1", "what rounding lost"


# --- what people see


def gpuslice(plane: ControlPlane, *command: str) -> str:
    """Run the command as a user with gpuslice-viewer."""
    options = (f"--kubeconfig={plane.kubeconfig('tenant')}",)
    ran = run(sys.executable, "-m", "gpuslice", *command, *options)
    assert not ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def viewer(plane: ControlPlane) -> None:
    for kind, where in (("clusterrole", ()), ("role", ("-n", names.NAMESPACE))):
        rights = ("viewer", f"--{kind}=gpuslice-viewer", "--user=tenant", *where)
        plane.kubectl("create", f"{kind}binding", *rights)


@pytest.mark.usefixtures("viewer")
def test_a_pod_that_no_gpu_has_room_for_holds_quota_until_it_is_deleted(
    plane: ControlPlane, cluster: Cluster
) -> None:
    """Ten GPUs of which 0.3 is used each. Kueue counts sums: a pod of 0.8 is admitted."""
    spread, labels = {names.ANNOTATION_POLICY: "spread"}, {names.LABEL_KAI_QUEUE: "test"}
    with Fleet(plane, _SIX.all_nodes()):
        parts = []
        for number, node in enumerate([*_GPUS.node_names()] * 4 + [*_SIX.node_names()] * 6):
            shares = {names.RESOURCE_CORE: 30, names.RESOURCE_MEMORY_RATIO: 30}
            parts.append(f"part-{number}")
            raw = pod(asking(shares), name=parts[-1], annotations=spread, labels=labels)
            raw["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
            cluster.server.make(_PODS, raw)
        until(lambda: all(map(cluster.is_bound, parts)), "the parts are bound")
        wide = cluster.pod("wide", "test", 80)
        until(lambda: not cluster.spec(wide).get("schedulingGates"), "Kueue admits the pod")
        until(lambda: cluster.allocated("test") == "3800m", "its quota is in use")

        def explained() -> str:
            return gpuslice(plane, "explain", wide, f"-n={NAMESPACE}")

        until(lambda: "waits for a GPU, and holds quota" in explained(), "explain says so")
        until(lambda: cluster.notes(wide), "an event says so after a minute", 90)
        (note,) = cluster.notes(wide)
        assert "for 60 s it has had no node" in note and "0.8 GPUs" in note
        assert not cluster.is_bound(wide)
        cluster.delete(wide)
        until(lambda: cluster.allocated("test") == "3", "its quota is free")
        fits = cluster.pod("fits", "test", 70)
        until(lambda: cluster.is_bound(fits), "a pod that fits runs")
        cluster.delete(*parts, fits)


@pytest.mark.usefixtures("viewer")
def test_converted_queues_stay_when_kais_are_deleted(plane: ControlPlane, cluster: Cluster) -> None:
    """The document's commands. The scheduler removes what it made itself."""
    first = cluster.pod("converted", "test")
    until(lambda: cluster.is_bound(first), "a pod runs, and its LocalQueue is there")
    plane.kubectl("apply", "-f", "-", given=gpuslice(plane, "queues", "convert"))
    assert "\n  test " in gpuslice(plane, "queues")
    cluster.queue(Q("managed", 1))
    until(lambda: cluster.nominal("ClusterQueue", "managed"), "another Queue is translated")
    plane.kubectl("delete", "queues.scheduling.run.ai", "--all")
    until(lambda: not cluster.nominal("ClusterQueue", "managed"), "the scheduler removes its own")
    kept = (("ClusterQueue", "test"), ("Cohort", "default"), ("Cohort", tree.ROOT))
    assert all(cluster.nominal(*each) for each in kept)
    second = cluster.pod("later", "test")
    until(lambda: cluster.is_bound(second), "Kueue still admits")
    cluster.delete(first, second)
