"""HAMi's dialect beyond its table of rows: selection of GPUs, policies, and whole GPUs."""

from __future__ import annotations

import pytest

from scheduler.core.place import Placement
from scheduler.core.request import Phase, Policy, Scope
from scheduler.dialects.hami import read
from scheduler.dialects.reading import Container, PodFields, Reading, RequestError
from scheduler.kubernetes import requests
from tests.requests.pods import asking, pod

GPU, PRIORITY = "nvidia.com/gpu", "nvidia.com/priority"
USE_TYPE, NO_USE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NO_USE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"


def reading(annotations: dict[str, str], **asked: int) -> Reading:
    """Read a pod that requests one GPU, and the amounts `asked` of HAMi's other resources."""
    limits: dict[str, object] = {GPU: 1, **{f"nvidia.com/{key}": n for key, n in asked.items()}}
    main = Container("main", Phase.MAIN, 0, limits, limits)
    found = read(PodFields("", annotations, {}, {}, [main]))
    assert found is not None
    return found


def is_selected(annotations: dict[str, str], model: str = "", uuid: str = "") -> bool:
    return all(line.matches({}, model, uuid) for line in reading(annotations).selector)


def test_a_request_is_isolated_and_no_device_plugin_allocates_beside_it() -> None:
    found = reading({})
    assert (found.scope, found.isolation) == (Scope.NODE, True)
    assert "amd.com/gpu" in found.foreign and GPU not in found.foreign


def test_whole_gpus_are_a_device_plugins_where_the_dialect_is_off() -> None:
    assert requests.request(pod(asking({GPU: 1}))) is None


@pytest.mark.parametrize(
    ("listed", "model", "matches"),
    [
        ("a100, v100", "Tesla V100-PCIE-32GB", True),
        ("A100,V100", "Tesla T4", False),
        ("A100", "", False),
        ("NVIDIA-Tesla T4", "Tesla T4", True),  # the form in HAMi's node annotation
        ("nvidia", "Tesla T4", True),
        ("AMD,INTEL,MLU", "Tesla T4", False),
        ("A100,", "Tesla T4", False),  # an empty name would match every model
    ],
)
def test_models_match_by_a_part_in_any_case(listed: str, model: str, matches: bool) -> None:
    assert is_selected({USE_TYPE: listed}, model) == matches
    assert is_selected({NO_USE_TYPE: listed}, model) != matches


def test_uuids_match_exactly_and_a_denied_one_is_never_used() -> None:
    both = {USE_UUID: "GPU-0,GPU-1", NO_USE_UUID: "GPU-1"}
    for listed, uuid, selected in (
        ({USE_UUID: "GPU-0, GPU-1,"}, "GPU-1", True),
        ({USE_UUID: "GPU-10,gpu-1"}, "GPU-1", False),
        ({NO_USE_UUID: "GPU-0,GPU-1"}, "GPU-1", False),
        (both, "GPU-0", True),
        (both, "GPU-1", False),
    ):
        assert is_selected(listed, uuid=uuid) == selected


def test_one_policy_ranks_nodes_and_gpus() -> None:
    assert reading({NODE_POLICY: "spread"}).policy is Policy.SPREAD
    assert reading({GPU_POLICY: "binpack"}).policy is Policy.BINPACK
    assert reading({GPU_POLICY: ""}).policy is None
    both = reading({NODE_POLICY: "binpack", GPU_POLICY: "spread"})
    assert both.policy is Policy.SPREAD
    assert both.notices == [
        f"metadata.annotations[{NODE_POLICY}]: binpack has no effect: {GPU_POLICY},"
        " spread, ranks nodes and GPUs"
    ]


def test_a_list_of_policies_has_one_that_ranks() -> None:
    for text, policy in (
        ("numa, spread,binpack", Policy.SPREAD),
        ("topology-aware", None),
        (" binpack ", Policy.BINPACK),
    ):
        assert reading({GPU_POLICY: text}).policy is policy


@pytest.mark.parametrize(
    ("text", "gpus", "scope"),
    [
        ("true", 2, Scope.NUMA_NODE),
        ("1", 2, Scope.NUMA_NODE),
        ("false", 2, Scope.NODE),
        ("true", 1, Scope.NODE),  # a GPU of an unknown NUMA node would not fit
    ],
)
def test_gpus_are_bound_to_one_numa_node(text: str, gpus: int, scope: Scope) -> None:
    raw = pod(asking({GPU: gpus}), annotations={"nvidia.com/numa-bind": text})
    found = requests.request(raw, frozenset({"hami"}))
    assert found is not None and found.scope is scope


def test_annotations_that_are_not_followed_get_a_notice() -> None:
    keys = "hami.io/device-scoring-weights", "hami.io/numa-alignment"
    assert reading(dict.fromkeys(keys, "any")).notices == [
        f"metadata.annotations[{key}] has no effect in gpuslice" for key in keys
    ]


@pytest.mark.parametrize(
    ("value", "annotated", "priority", "written"),
    [
        ("force", {}, 0, {"gpuslice.io/compute.main": "capped"}),
        ("default", {}, 0, {}),
        ("force", {}, 1, {"gpuslice.io/compute.main": "background"}),
        ("force", {"gpuslice.io/compute.main": "fair"}, 0, {}),
        (None, {}, 0, {}),
    ],
)
def test_a_forced_core_policy_is_the_capped_policy(
    value: object, annotated: dict[str, str], priority: int, written: dict[str, str]
) -> None:
    env = [{"name": "A"}, {"name": "GPU_CORE_UTILIZATION_POLICY", "value": value}]
    raw = pod(asking({GPU: 1, PRIORITY: priority}, env=env), annotations=annotated)
    found = requests.pending(raw, frozenset({"hami"}))
    assert found.outputs(Placement("", (), ()), (), 0).annotations == written


def test_a_low_priority_is_the_background_policy() -> None:
    """The annotation of the container precedes its priority."""
    key = "gpuslice.io/compute.main"
    for annotated, priority, written in (
        ({}, 0, {}),
        ({}, 1, {key: "background"}),
        ({"gpuslice.io/compute": "turns"}, 1, {key: "background"}),
        ({key: "fair"}, 1, {}),
    ):
        found = reading(annotated, priority=priority)
        assert found.notices == []
        assert found.outputs(Placement("", (), ()), (), 0).annotations == written


def test_a_low_priority_of_a_long_name_has_no_effect() -> None:
    """The name does not fit into the key of an annotation."""
    name = "x" * 56
    found = requests.pending(pod(asking({GPU: 1, PRIORITY: 1}, name)), frozenset({"hami"}))
    assert found.notices == [
        f"container {name}: {PRIORITY}: 1 has no effect: the container's name has more than 55"
        " characters; use metadata.annotations[gpuslice.io/compute]"
    ]
    assert found.outputs(Placement("", (), ()), (), 0).annotations == {}


@pytest.mark.parametrize("key", [USE_TYPE, NO_USE_TYPE, USE_UUID, NO_USE_UUID])
def test_a_list_has_a_limit(key: str) -> None:
    """Long lists are slow, because filter compares each UUID with each GPU of the cluster."""
    assert reading({key: ",".join(["GPU-1"] * 1000)})
    with pytest.raises(RequestError) as refused:
        reading({key: ",".join(["GPU-1"] * 1001)})
    assert str(refused.value) == (
        f"metadata.annotations[{key}]: invalid value of 1001 names: must be at most 1000 names;"
        " use the node's annotation gpuslice.io/excluded-gpus, or a nodeSelector"
    )
