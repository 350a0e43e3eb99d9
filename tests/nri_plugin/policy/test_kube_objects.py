"""The scheduler can read what the agent writes about a node. The agent reads any input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import names
from gpuslice.contract.dialects import NODE_RESOURCES
from nri_plugin.policy import kube_objects
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.kube_objects import Bound
from nri_plugin.policy.model import Gpu, Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.totals import Entry, totals
from scheduler.core.fleet import Gpu as SchedulersGpu
from scheduler.kubernetes import translate

Json = dict[str, Any]

GPU = Gpu("GPU-0", 0, 1 << 30)
gpus = st.builds(
    Gpu,
    st.uuids().map(str),
    st.integers(0, 31),
    st.integers(1 << 20, 1 << 40),
    st.none() | st.integers(0, 7),
    st.sampled_from(["", "pci0000:3a"]),
    st.sampled_from(["", "nvlink-0"]),
    model=st.sampled_from(["", "NVIDIA A100-SXM4-80GB"]),
)
listed_gpus = st.lists(
    st.builds(Entry, gpus, st.booleans()), max_size=16, unique_by=lambda entry: entry.gpu.uuid
).map(lambda found: sorted(found, key=lambda e: (e.gpu.minor, e.gpu.uuid)))


def stored(document: Any) -> Json:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": "7"}}


@given(listed_gpus)
def test_the_scheduler_reads_the_device_as_it_was_meant(listed: Sequence[Entry]) -> None:
    written = kube_objects.device("node-1", "uid-1", listed)
    assert written is not None
    read = translate.device(written)
    assert (read.name, read.node_uid, read.problems, read.readable) == ("node-1", "uid-1", (), True)
    assert len(read.gpus) == len(listed)
    for found, entry in zip(read.gpus, listed, strict=True):
        gpu = entry.gpu
        labels = {names.LABEL_GPU_LINK: gpu.link, names.LABEL_GPU_MODEL: gpu.model}
        assert found == SchedulersGpu(
            gpu.uuid,
            gpu.minor,
            gpu.memory_bytes,
            usable=entry.healthy,
            numa=gpu.numa,
            root=gpu.root or None,
            link=gpu.link or None,
            labels={key: value for key, value in labels.items() if value},
            model=gpu.model,
        )
    assert kube_objects.entries(written) == list(listed)
    assert kube_objects.device("node-1", "uid-1", listed, stored(written)) is None
    renamed = kube_objects.device("node-1", "uid-2", listed, stored(written))
    assert renamed is not None and renamed["metadata"]["resourceVersion"] == "7"
    assert translate.device(renamed).node_uid == "uid-2"


def test_the_device_tells_which_memory_limits_are_in_force() -> None:
    written = kube_objects.device("node-1", "uid-1", [Entry(GPU, True, limits="driver")])
    assert written is not None
    labels = written["spec"]["devices"][0]["labels"]
    assert labels[names.LABEL_GPU_MEMORY_LIMITS] == "driver"


def test_the_device_has_the_reason_and_the_time_of_a_gpu_that_is_not_offered() -> None:
    """Each scheduler that reads the Device leaves out the GPU, Koordinator's too."""
    well = Entry(replace(GPU, bus_id="0000:3b:00.0"), True)
    ill, another = (
        Entry(replace(well.gpu, problem=problem), False) for problem in ("XID 79", "another")
    )
    whole = Entry(GPU, True, Mode.WHOLE, "a pod holds it whole")
    written: Json = {}
    for entry, now, (status, reason, message, since) in (
        (well, "first", ("True", "Usable", "", "first")),
        (ill, "second", ("False", "Unusable", "XID 79", "second")),
        (another, "third", ("False", "Unusable", "another", "second")),
        (whole, "fourth", ("False", "Whole", whole.why, "second")),
    ):
        written = dict(kube_objects.device("n", "u", [entry], written, now) or {})
        (listed,) = written["spec"]["devices"]
        assert listed["health"] is entry.offered
        assert translate.device(written).gpus[0].usable is entry.offered
        assert listed["topology"].get("busID", "") == entry.gpu.bus_id
        stated = {"status": status, "reason": reason, "message": message}
        assert listed["conditions"] == [{"type": "Healthy", "lastTransitionTime": since, **stated}]
        assert kube_objects.has_conditions(written)
        assert kube_objects.device("n", "u", [entry], written, "later") is None
        assert kube_objects.entries(written) == [
            Entry(replace(entry.gpu, problem=message), entry.offered)
        ]
    assert not kube_objects.has_conditions(kube_objects.device("n", "u", [ill]) or {})


def test_the_gpus_of_another_device_plugin() -> None:
    theirs = {"nvidia.com/gpu": "8", "nvidia.com/gpu.shared": "32", "nvidia.com/mig-1g.10gb": "7"}
    others = {"nvidia.com/mig-2g.20gb": "0", "nvidia.com/hostdev": "2", "nvidia.com/gpumem": "9"}
    read = kube_objects.node({"status": {"allocatable": theirs | others}})
    assert read.plugin_gpus == theirs and not read.operator and not read.isolates
    label = {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "true"}}}
    assert kube_objects.node(label).operator


def test_others_entries_and_owners_stay() -> None:
    nic = {"type": "rdma", "id": "0000:01:00.0", "health": True}
    owner = {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "y"}
    current = {"metadata": {"ownerReferences": [owner]}, "spec": {"devices": [nic]}}
    written = kube_objects.device("n", "u", [Entry(GPU, True)], stored(current))
    assert written is not None
    assert [each["type"] for each in written["spec"]["devices"]] == ["gpu", "rdma"]
    assert written["metadata"]["ownerReferences"][1] == owner
    assert kube_objects.device("n", "u", kube_objects.entries(written), stored(written)) is None


amounts = st.dictionaries(st.sampled_from(NODE_RESOURCES), st.integers(0, 1 << 40))


@given(listed_gpus, amounts, amounts)
def test_a_capacity_that_was_patched_needs_no_patch(
    listed: Sequence[Entry], capacity: dict[str, int], allocatable: dict[str, int]
) -> None:
    were = {"capacity": capacity, "allocatable": allocatable}
    status = {
        where: {"cpu": "8", **{key: str(each) for key, each in amounts.items()}}
        for where, amounts in were.items()
    }
    raw: Json = {"metadata": {"name": "n"}, "status": status}
    wanted = totals(listed, frozenset(), {}, NODE_RESOURCES)
    patch = kube_objects.capacity(wanted, kube_objects.node(raw)) or {"status": {}}
    for where, changes in patch["status"].items():
        assert changes.keys() <= set(NODE_RESOURCES)
        status[where].update(changes)
    facts = kube_objects.node(raw)
    assert kube_objects.capacity(wanted, facts) is None
    for here in (facts.capacity, facts.allocatable):
        assert {key: here.get(key, 0) for key in NODE_RESOURCES} == dict(wanted)


def test_totals_of_an_agent_that_are_off_now_are_removed() -> None:
    ours, theirs = names.RESOURCE_CORE, names.RESOURCE_MEMORY
    fields = [
        {"manager": manager, "fieldsV1": {"f:status": {"f:capacity": {f"f:{key}": {}}}}}
        for manager, key in ((names.AGENT, ours), ("another", theirs))
    ]
    status = {"capacity": {ours: "1", theirs: "1"}}
    facts = kube_objects.node({"metadata": {"managedFields": fields}, "status": status})
    assert kube_objects.capacity({}, facts) == {"status": {"capacity": {ours: None}}}


def container(core: int, **more: object) -> Json:
    return {"resources": {"requests": {names.RESOURCE_CORE: str(core)}}, **more}


def test_a_pods_requests_are_counted_as_the_kubelet_does() -> None:
    sidecar, *shared = container(20, restartPolicy="Always"), container(30), container(10)
    for each in shared:
        each["resources"]["requests"][names.RESOURCE_SHARED] = "1"
    spec = {
        "initContainers": [container(70), sidecar, container(60)],
        "containers": shared,
        "overhead": {names.RESOURCE_CORE: "5", "cpu": "1"},
    }
    found = kube_objects.bound({"spec": spec})
    assert found.requested == {names.RESOURCE_CORE: 85, names.RESOURCE_SHARED: 2}
    assert kube_objects.bound({"spec": spec, "status": {"phase": "Failed"}}).requested == {}
    limits = {"containers": [{"resources": {"limits": {names.RESOURCE_CORE: 40}}}]}
    assert kube_objects.bound({"spec": limits}).requested == {names.RESOURCE_CORE: 40}


def test_a_bound_pod_has_the_fields_of_its_grant_alone() -> None:
    label = {names.LABEL_ISOLATION_PROVIDER: "hami-core"}
    granted = {names.ANNOTATION_GRANTS: "{}"}
    ready = {"type": "Ready", "lastTransitionTime": "2026-01-01T00:00:02Z"}
    scheduled = {"type": "PodScheduled", "lastTransitionTime": "2026-01-01T00:00:01Z"}
    annotations = {**granted, names.ANNOTATION_WRITER: "scheduler-0 3", "other": "y"}
    more = {"labels": {**label, "app": "x"}, "annotations": annotations}
    raw = {
        "metadata": {"uid": "u", "namespace": "team", "name": "train", **more},
        "spec": {"schedulerName": names.SCHEDULER_NAME},
        "status": {"phase": "Running", "conditions": [ready, scheduled]},
    }
    found, pod = kube_objects.bound(raw), Pod("u", "team", "train", label, granted)
    assert found == Bound(pod, "2026-01-01T00:00:01Z", False, {}, True, "scheduler-0 3")
    untimed = {**raw, "status": {"conditions": [{"type": "PodScheduled"}]}}
    assert "" < found.scheduled < kube_objects.bound(untimed).scheduled
    another = kube_objects.bound({"metadata": {"annotations": {"a": "b"}}})
    assert (another.is_ours, another.writer) == (False, "")


def test_an_event_is_about_a_pod_or_the_node() -> None:
    cause = Pod("u", "team", "train"), "main", "GpuFailed", ""
    for notice, kind, namespace, severity in (
        (Notice(*cause), "Pod", "team", "Warning"),
        (Notice(*cause, of_node=True, warning=False), "Node", "default", "Normal"),
    ):
        event = kube_objects.event(notice, "x" * 2000, "n" * 200, "uid-1", "e", "now")
        found = event["regarding"]["kind"], event["metadata"]["namespace"], event["type"]
        assert (*found, "related" in event) == (kind, namespace, severity, kind == "Node")
        assert (len(event["note"]), len(event["reportingInstance"])) == (1000, 128)


def test_a_lease_is_its_nodes_once_the_node_is_known() -> None:
    unowned, owned = (kube_objects.lease("n", uid, "now", "true")["metadata"] for uid in ("", "u"))
    assert "ownerReferences" not in unowned
    assert [owner["uid"] for owner in owned["ownerReferences"]] == ["u"]


WORDS = (
    "metadata spec status devices labels annotations containers resources requests initContainers"
    " conditions topology id minor type capacity allocatable overhead ownerReferences"
)
KEYS = st.sampled_from(WORDS.split())
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=6),
    max_leaves=30,
)


@given(st.dictionaries(KEYS, anything, max_size=8))
def test_whatever_others_wrote_is_read(raw: Json) -> None:
    for read in (kube_objects.node, kube_objects.entries, kube_objects.bound):
        read(raw)
    kube_objects.device("n", "u", (), raw)


def test_gpus_that_cannot_be_read_are_left_out() -> None:
    memory = {names.RESOURCE_MEMORY: "1Gi"}
    whole: Json = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True, "resources": memory}
    odd: list[Json] = [{"type": "rdma"}, {"id": 5}, {"minor": -1}, {"minor": True}, {"minor": "0"}]
    odd += [{"resources": {}}, {"resources": {names.RESOURCE_MEMORY: "much"}}]
    listed = [whole, *({**whole, **each} for each in odd)]
    assert kube_objects.entries({"spec": {"devices": listed}}) == [Entry(GPU, True)]
