"""Kubernetes objects as the core's values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract import grants, names
from scheduler.core.request import Phase, Policy, Request, Requirement, Scope
from scheduler.dialects.reading import RequestError
from scheduler.dialects.table import DEFAULT
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.facts import HeldGpu, LeaseFacts, NodeFacts, Unreadable
from tests.scheduler.objects import (
    Gi,
    allocated,
    container,
    device,
    gpu,
    lease,
    node,
    pod,
    resources,
)

HALF = container("main", core=50, ratio=50)
HINT = names.ANNOTATION_ALLOCATE_HINT


def request(raw: dict[str, Any]) -> Request:
    read = requests.request(raw)
    assert read is not None
    return read


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        requests.request(raw)
    return str(caught.value)


# --- requests


def test_containers_count_while_kubernetes_runs_them() -> None:
    inits = [
        container("first", ratio=10),
        container("beside", sidecar=True, ratio=20),
        {"name": "no-gpu"},
        container("second", ratio=30),
    ]
    read = request(pod(HALF, container("other", ratio=5), inits=inits))
    assert [
        (requested.name, requested.phase, requested.order) for requested in read.containers
    ] == [
        ("first", Phase.INIT, 0),
        ("beside", Phase.SIDECAR, 1),
        ("second", Phase.INIT, 3),
        ("main", Phase.MAIN, 0),
        ("other", Phase.MAIN, 1),
    ]
    assert list(read.moments) == [(0,), (1, 2), (1,), (2,), (2,)]
    assert read.peak_of(1000) == (750, 50)


@pytest.mark.parametrize("value", ["hami-core", "HAMi-core", "HAMI-CORE"])
def test_the_label_of_isolation_is_read_in_any_case(value: str) -> None:
    label = {names.LABEL_ISOLATION_PROVIDER: value}
    assert request(pod(HALF, labels=label)).isolation
    assert not request(pod(HALF)).isolation


@pytest.mark.parametrize("asked", [{}, {"nvidia.com/gpu": 1}])
def test_the_label_alone_requests_nothing(asked: dict[str, object]) -> None:
    for provider in ("hami-core", "mps"):
        label = {names.LABEL_ISOLATION_PROVIDER: provider}
        raw = pod({"name": "main", "resources": {"limits": asked}}, labels=label)
        assert requests.request(raw) is None


def test_two_containers_of_one_name_are_refused() -> None:
    """Grants are keyed by name. The API server refuses such a pod; a file may contain one."""
    assert "invalid value main, main: must be unique" in refused(pod(HALF, HALF))


def test_a_pod_of_too_many_requesting_containers_is_refused() -> None:
    some = [container(f"c{n}", core=1, ratio=1) for n in range(requests.MAX_CONTAINERS)]
    assert requests.request(pod({"name": "asks for none"}, *some)) is not None
    assert "must be at most 32" in refused(pod(*some, inits=[container("i", core=1, ratio=1)]))


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.SPREAD])
def test_policy_by_annotation(policy: Policy) -> None:
    annotations = {names.ANNOTATION_POLICY: policy.value}
    assert request(pod(HALF, annotations=annotations)).policy is policy
    assert request(pod(HALF)).policy is None


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("Device", Scope.DEVICE),
        ("PCIe", Scope.PCIE),
        ("NUMANode", Scope.NUMA_NODE),
        ("Node", Scope.NODE),
        ("", Scope.NODE),
    ],
)
def test_the_hints_scope(text: str, scope: Scope) -> None:
    hint = {HINT: json.dumps({"gpu": {"requiredTopologyScope": text, "vfSelector": None}})}
    assert request(pod(HALF, annotations=hint)).scope is scope


def test_the_hints_selector() -> None:
    selector = {
        "matchLabels": {"model": "A100"},
        "matchExpressions": [
            {"key": "slot", "operator": "In", "values": ["1", "2"]},
            {"key": "slot", "operator": "NotIn", "values": ["2"]},
            {"key": "nvlink", "operator": "Exists"},
            {"key": "mig", "operator": "DoesNotExist", "values": []},
        ],
    }
    read = request(pod(HALF, annotations={HINT: json.dumps({"gpu": {"selector": selector}})}))
    assert list(read.selector) == [
        Requirement("model", frozenset({"A100"})),
        Requirement("slot", frozenset({"1", "2"})),
        Requirement("slot", frozenset({"2"}), negated=True),
        Requirement("nvlink"),
        Requirement("mig", negated=True),
    ]
    matching = {"model": "A100", "slot": "1", "nvlink": ""}
    assert all(line.matches(matching) for line in read.selector)
    for wrong in ({"slot": "2"}, {"mig": "on"}, {"model": "T4"}):
        assert not all(line.matches({**matching, **wrong}) for line in read.selector)
    assert Requirement("slot", frozenset({"2"}), negated=True).matches({})


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        ("{", "invalid value '{': must be JSON: Expecting"),
        ("[" * 16_000, f"invalid value '{'[' * 40}...': must be JSON: "),
        ("[]", "must be an object, not list"),
        ('{"rdma":{"selector":{}}}', "invalid value rdma: must be one of gpu"),
        ('{"gpu":[1]}', "gpu: must be an object, not list"),
        ('{"gpu":{"allocateStrategy":"ApplyForAll"}}', "invalid value allocateStrategy: must be"),
        ('{"gpu":{"exclusivePolicy":"DeviceLevel"}}', "invalid value exclusivePolicy: must be"),
        ('{"gpu":{"vfSelector":{"a":1}}}', "invalid value vfSelector: must be"),
        ('{"gpu":{"requiredTopologyScope":"Socket"}}', "'Socket': must be one of Device, PCIe"),
        ('{"gpu":{"requiredTopologyScope":1}}', "1: must be one of Device, PCIe"),
        ('{"gpu":{"selector":{"matchFields":{"a":1}}}}', "invalid value matchFields: must be"),
        ('{"gpu":{"selector":{"matchLabels":{"a":1}}}}', "matchLabels.a: invalid value 1: must be"),
        ('{"gpu":{"selector":{"matchExpressions":{"a":1}}}}', "matchExpressions: must be a list"),
        ('{"gpu":{"selector":{"matchExpressions":[1]}}}', "[0]: must be an object, not int"),
        ('{"gpu":{"selector":{"matchExpressions":[{}]}}}', "[0].key: invalid value None"),
        (
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}}',
            "[0].operator: invalid value 'Gt': must be one of In, NotIn, Exists, DoesNotExist",
        ),
        (
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":[1]}]}}}',
            "[0].values: invalid value [1]: must be strings",
        ),
        (
            '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}',
            "[0].values: invalid value []: must be one or more with In",
        ),
        (
            '{"gpu":{"selector":{"matchExpressions":'
            '[{"key":"a","operator":"Exists","values":["b"]}]}}}',
            "[0].values: invalid value ['b']: must be empty with Exists",
        ),
    ],
)
def test_hints_that_are_not_honoured_are_refused_by_name(hint: str, text: str) -> None:
    said = refused(pod(HALF, annotations={HINT: hint}))
    assert said.startswith(f"metadata.annotations[{HINT}]")
    assert text in said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_json_in_a_pod_is_read_or_refused(data: st.DataObject) -> None:
    raw = deepcopy(pod(HALF, node="n1", inits=[container("first", ratio=10)]))
    raw["metadata"]["annotations"] = {HINT: "{}", names.ANNOTATION_DEVICE_ALLOCATED: "{}"}
    at: Any = raw
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (dict, list)) or data.draw(st.booleans()):
            at[key] = data.draw(JSON)
            break
        at = at[key]
    try:
        requests.request(raw)
    except RequestError as error:
        assert str(error)
    translate.pod(raw)
    for read in (translate.node, translate.device, translate.lease):
        read(raw)
        read(data.draw(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON)))


# --- holdings


def held(raw: dict[str, Any]) -> tuple[object, str]:
    facts = translate.pod(raw)
    return facts.held, facts.problem


def bound(annotations: dict[str, str], *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod(*(containers or (HALF,)), node="n1", annotations=annotations, **more)


def test_a_pod_that_koordinator_bound_holds_its_allocation() -> None:
    full = resources(core="50", memory="12Gi", ratio="50")
    text = allocated(("GPU-a", 3, full))
    assert held(bound({names.ANNOTATION_DEVICE_ALLOCATED: text})) == (
        (HeldGpu("GPU-a", 3, 12 * Gi, 50, 50),),
        "",
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((None, 1, resources(memory=1024)), HeldGpu(None, 1, 1024, None, 0)),
        (("GPU-a", 1, resources(ratio=33)), HeldGpu("GPU-a", 1, None, None, 33)),
        (
            (None, 1, {"kubernetes.io/gpu-core": 5, "kubernetes.io/gpu-memory": "1Ki"}),
            HeldGpu(None, 1, 1024, 5, 0),
        ),
        ((None, 1, resources(memory=2**62, core=900)), HeldGpu(None, 1, 2**48, 100, 0)),
    ],
)
def test_older_writers_are_read(
    entry: tuple[str | None, int, dict[str, object]], expected: HeldGpu
) -> None:
    text = allocated(entry)
    assert held(bound({names.ANNOTATION_DEVICE_ALLOCATED: text})) == ((expected,), "")


def granted(**containers: Sequence[tuple[str, int, int, int]]) -> str:
    return grants.encode(
        {name: [grants.GpuGrant(*each) for each in gpus] for name, gpus in containers.items()}
    )


def test_a_pod_of_ours_holds_the_most_that_runs_at_once() -> None:
    annotations = {
        names.ANNOTATION_DEVICE_ALLOCATED: allocated(
            ("GPU-a", 0, resources(core=90, memory=9000)), ("GPU-b", 1, resources(memory=300))
        ),
        names.ANNOTATION_GRANTS: granted(
            first=[("GPU-a", 0, 700, 70)],
            main=[("GPU-a", 0, 400, 10), ("GPU-b", 1, 200, 100)],
            other=[("GPU-a", 0, 200, 20)],
        ),
    }
    raw = bound(
        annotations, HALF, container("other", ratio=5), inits=[container("first", ratio=10)]
    )
    assert held(raw) == (
        (HeldGpu("GPU-a", 0, 700, 70), HeldGpu("GPU-b", 1, 200, None)),
        "",
    )


def test_a_container_that_the_pod_lacks_counts_as_running_throughout() -> None:
    annotations = {
        names.ANNOTATION_GRANTS: granted(
            main=[("GPU-a", 0, 400, 10)], unknown=[("GPU-a", 0, 200, 20)]
        )
    }
    assert held(bound(annotations)) == ((HeldGpu("GPU-a", 0, 600, 30),), "")


def test_grants_that_cannot_be_read_leave_the_allocation() -> None:
    text = allocated(("GPU-a", 0, resources(memory=1024)))
    annotations = {names.ANNOTATION_DEVICE_ALLOCATED: text, names.ANNOTATION_GRANTS: "{}"}
    found, problem = held(bound(annotations))
    assert found == (HeldGpu("GPU-a", 0, 1024, None),)
    assert problem.startswith("annotation gpuslice.io/grants: ")


def test_an_allocation_that_cannot_be_read_leaves_the_grants() -> None:
    annotations = {
        names.ANNOTATION_DEVICE_ALLOCATED: "{",
        names.ANNOTATION_GRANTS: granted(main=[("GPU-a", 0, 400, 10)]),
    }
    found, problem = held(bound(annotations))
    assert found == (HeldGpu("GPU-a", 0, 400, 10),)
    assert problem.startswith("annotation scheduling.koordinator.sh/device-allocated: ")


@pytest.mark.parametrize(
    "annotations",
    [
        {names.ANNOTATION_DEVICE_ALLOCATED: "{"},
        {names.ANNOTATION_DEVICE_ALLOCATED: allocated(("GPU-a", 0, resources(core=5)))},
        {names.ANNOTATION_GRANTS: "{"},
        {names.ANNOTATION_GRANTS: "{", names.ANNOTATION_DEVICE_ALLOCATED: "["},
    ],
)
def test_what_cannot_be_read_at_all_may_be_any_gpu(annotations: dict[str, str]) -> None:
    found, problem = held(bound(annotations))
    assert found == Unreadable(request(pod(HALF)))
    assert problem.startswith("annotation ")
    malformed = bound(annotations, container("main", core=50))
    assert held(malformed)[0] == Unreadable(None)
    assert held(bound(annotations, {"name": "main"}))[0] == ()


def test_a_bound_pods_old_names_are_read() -> None:
    """Koordinator's own scheduler bound it; an unbound pod with these names is refused."""
    old = {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 50}
    asking = {"name": "main", "resources": {"limits": old, "requests": old}}
    found, _ = held(bound({names.ANNOTATION_DEVICE_ALLOCATED: "{"}, asking))
    assert found == Unreadable(request(pod(container("main", core=50, ratio=50))))
    assert "must be koordinator.sh/gpu-core" in refused(pod(asking))


@pytest.mark.parametrize("annotations", [{}, {names.ANNOTATION_DEVICE_ALLOCATED: '{"rdma":[]}'}])
def test_bound_by_hand_without_an_allocation(annotations: dict[str, str]) -> None:
    """The node agent injects no GPU, so the pod holds none."""
    assert held(bound(annotations)) == ((), "bound without an allocation: it has no GPU")
    assert held(bound(annotations, container("main", core=50)))[1]
    assert held(bound(annotations, {"name": "main"})) == ((), "")


def test_bound_by_hand_with_another_dialects_resources() -> None:
    """Under another name they are another scheduler's; a device plugin allocates whole GPUs."""
    for resource, problem in (("nvidia.com/gpumem", True), ("nvidia.com/gpu", False)):
        asking = {"name": "main", "resources": {"limits": {resource: "1"}}}
        raw = bound({}, asking)
        assert held(raw) == ((), "")
        raw["spec"]["schedulerName"] = names.SCHEDULER_NAME
        assert bool(held(raw)[1]) == problem


def test_an_allocation_on_a_pod_that_is_not_bound_is_nothing() -> None:
    text = allocated(("GPU-a", 0, resources(memory=1024)))
    facts = translate.pod(pod(HALF, annotations={names.ANNOTATION_DEVICE_ALLOCATED: text}))
    assert (facts.node, facts.held) == ("", ())
    assert (facts.uid, facts.namespace, facts.name) == ("u-1", "default", "pod-u-1")


# --- nodes


def test_a_node() -> None:
    raw = node("n1", "uid-1", cordoned_gpus="GPU-a, GPU-b,", excluded_gpus="GPU-c")
    assert translate.node(raw) == NodeFacts(
        "n1", "uid-1", True, frozenset({"GPU-a", "GPU-b"}), frozenset({"GPU-c"})
    )
    assert not translate.node(node("n1", isolates=False)).isolates
    for policy, partitioned in (("Honor", True), ("Prefer", False)):
        raw["metadata"]["labels"]["node.koordinator.sh/gpu-partition-policy"] = policy
        assert translate.node(raw).partitioned is partitioned


def test_an_inventory() -> None:
    gpus = (
        gpu("GPU-b", 1, "80Gi", numa=1, root="pci0000:80", labels={"gpuslice.io/link": "x"}),
        gpu("GPU-a", 0, numa=-1, root=""),
        {"type": "rdma", "id": "0000:1f:00.0", "minor": 0},
    )
    facts = translate.device(device("n1", *gpus, node_uid="uid-1"))
    assert (facts.name, facts.node_uid, facts.readable, facts.problems) == ("n1", "uid-1", True, ())
    first, second = facts.gpus
    assert (first.uuid, first.minor, first.total_bytes, first.usable) == ("GPU-a", 0, 24 * Gi, True)
    assert (first.numa, first.root, first.link) == (None, None, None)
    assert (second.numa, second.root, second.link) == (1, "pci0000:80", "x")
    assert second.labels == {"gpuslice.io/link": "x"}


@pytest.mark.parametrize("health", [False, None, "true"])
def test_a_gpu_that_is_not_reported_as_healthy_is_not_usable(health: object) -> None:
    (only,) = translate.device(device("n1", gpu("GPU-a", 0, health=health))).gpus
    assert not only.usable


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": ""}, 'id: invalid value "": must be the UUID of a GPU'),
        ({"id": 5}, "id: invalid value 5"),
        ({"minor": None}, "minor: required value: must be a whole number from 0"),
        ({"minor": True}, "minor: invalid value true"),
        ({"minor": -1}, "minor: invalid value -1"),
        ({"resources": None}, "resources.koordinator.sh/gpu-memory: required value: must be a"),
        ({"resources": {"koordinator.sh/gpu-memory": "99"}}, 'value "99": must be a quantity from'),
        ({"resources": {"koordinator.sh/gpu-memory": "1Ei"}}, 'invalid value "1Ei": must be a'),
        ({"id": "GPU-b"}, 'id: invalid value "GPU-b": must be unique'),
    ],
)
def test_a_gpu_that_cannot_be_read_is_left_out_and_reported(
    change: dict[str, object], text: str
) -> None:
    facts = translate.device(device("n1", gpu("GPU-b", 1), {**gpu("GPU-a", 0), **change}))
    assert [each.uuid for each in facts.gpus] == ["GPU-b"]
    (problem,) = facts.problems
    assert problem.startswith("Device: spec.devices[1]")
    assert text in problem


def test_the_deprecated_name_of_a_gpus_memory_is_read() -> None:
    old = {**gpu("GPU-a", 0), "resources": {"kubernetes.io/gpu-memory": "24Gi"}}
    assert translate.device(device("n1", old)).gpus[0].total_bytes == 24 * Gi


def test_more_gpus_than_a_node_can_have() -> None:
    facts = translate.device(device("n1", *(gpu(f"GPU-{n}", n) for n in range(18))))
    assert [each.minor for each in facts.gpus] == list(range(16))
    assert facts.problems == ("Device: 18 GPUs; those behind the first 16 are left out",)


def test_an_inventory_that_cannot_be_read_and_an_empty_one() -> None:
    empty, broken = device("n1"), device("n1")
    empty["spec"]["devices"] = None
    broken["spec"]["devices"] = "none"
    assert translate.device(empty).readable
    facts = translate.device(broken)
    assert (facts.readable, facts.gpus) == (False, ())
    assert facts.problems == ('Device: spec.devices: invalid value "none": must be a list',)


def test_an_agents_lease() -> None:
    beat, at_s = "2026-01-01T00:00:07.000000Z", 1767225607.0
    for ready, said in (("true", ""), ("no driver", "no driver"), ("", "no reason given")):
        found = translate.lease(lease("n1", 7, ready))
        assert found == LeaseFacts("n1", beat, said, at_s)
    assert translate.lease(lease("n1", 7, None)) == LeaseFacts(
        "n1", beat, "readiness not reported", at_s
    )


@pytest.mark.parametrize("written", [None, "", "soon", "2026-01-01T00:00:07"])
def test_a_lease_without_a_valid_renewal_time(written: str | None) -> None:
    raw = lease("n1")
    raw["spec"]["renewTime"] = written
    assert translate.lease(raw) == LeaseFacts("n1", written or "")


def test_other_leases_are_not_an_agents() -> None:
    elsewhere, other = lease("n1"), lease("n1")
    elsewhere["metadata"]["namespace"] = "kube-node-lease"
    other["metadata"]["name"] = names.LEASE_SCHEDULER
    assert translate.lease(elsewhere) is None
    assert translate.lease(other) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"annotations": {"mps": "true"}},
        {"annotations": {"gpu-memory": "16Gi"}},
        {"annotations": {"gpu-fraction": "0.5"}},
        {"spec": {"schedulerName": "kai-scheduler"}, "annotations": {"gpu-fraction": "0.5"}},
        {"resources": {"volcano.sh/gpu-memory": 1024}},
        {"resources": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}},
    ],
    ids=str,
)
def test_a_bound_pod_of_another_scheduler_is_no_problem(fields: dict[str, Any]) -> None:
    """It has no allocation of ours, and its request is another scheduler's."""
    asked = {"name": "main", "resources": {"limits": fields.get("resources", {})}}
    raw = pod(asked, node="n0", annotations=fields.get("annotations", {}))
    raw["spec"] |= fields.get("spec", {})
    assert translate.pod(raw).problem == ""


def test_kais_annotations_mean_nothing_in_pods_of_other_schedulers() -> None:
    raw = pod(HALF, annotations={"gpu-memory": "16Gi", "mps": "true", "gpu-fraction": "0.5"})
    for enabled in (DEFAULT, frozenset({"koordinator", "kai"})):
        found = requests.read(raw, enabled)
        assert found is not None and [requested.name for requested in found.request.containers] == [
            "main"
        ]
