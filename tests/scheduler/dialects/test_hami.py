"""HAMi's dialect: what its pods request, and what is refused instead of clamped or dropped."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import pytest

from gpuslice.contract import names
from scheduler.core.request import ContainerRequest, Phase, Policy, Scope
from scheduler.dialects.hami import read
from scheduler.dialects.reading import Container, PodFields, Reading, RequestError
from scheduler.dialects.table import DEFAULT
from scheduler.kubernetes import requests
from tests.support import MIB

GPU, MEMORY, PERCENT, CORES, PRIORITY = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
)
WHOLE: Final = Fraction(1)
HALF: Final = Fraction(1, 2)


def container(asked: dict[str, object], name: str = "main", **more: Any) -> Container:
    return Container(name, more.pop("phase", Phase.MAIN), 0, asked, dict(asked), **more)


def pod(*containers: Container, **annotations: str) -> PodFields:
    return PodFields("", annotations, {}, {}, containers)


def annotated(key: str, value: str) -> PodFields:
    return pod(container({GPU: 1, MEMORY: 3000}), **{key: value})


def reading(fields: PodFields) -> Reading:
    found = read(fields)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "gpus", "core", "size", "ratio"),
    [
        ({GPU: 1, MEMORY: 3000}, 1, None, 3000 * MIB, None),
        ({GPU: "2", MEMORY: "8k", CORES: "30"}, 2, 30, 8000 * MIB, None),
        ({GPU: 1, PERCENT: 50}, 1, None, None, HALF),
        ({GPU: 1, PERCENT: 50, CORES: 50}, 1, 50, None, HALF),
        ({GPU: 1, PERCENT: 50, MEMORY: 3000}, 1, None, 3000 * MIB, None),  # unlike Volcano
        ({GPU: 2}, 2, 100, None, WHOLE),  # nothing else on them
        ({GPU: 1, PERCENT: 100}, 1, 100, None, WHOLE),
        ({GPU: 1, PERCENT: 0, MEMORY: 0, CORES: 0}, 1, 100, None, WHOLE),
        ({GPU: 1, CORES: 30}, 1, 30, None, WHOLE),
        ({GPU: 1, MEMORY: 3000, CORES: 100}, 1, 100, 3000 * MIB, None),
        ({MEMORY: 3000}, 1, None, 3000 * MIB, None),
        ({PERCENT: 25, PRIORITY: 0}, 1, None, None, Fraction(1, 4)),
        ({CORES: 10}, 1, 10, None, WHOLE),
        ({GPU: 16, MEMORY: 1 << 28}, 16, None, 1 << 48, None),
    ],
)
def test_amounts_are_of_each_gpu(
    asked: dict[str, object], gpus: int, core: int | None, size: int, ratio: Fraction | None
) -> None:
    (requested,) = reading(pod(container(asked))).containers
    assert requested == ContainerRequest("main", Phase.MAIN, 0, gpus, core, size, ratio)


def test_each_container_has_its_own_share() -> None:
    first = container({MEMORY: 1000}, "first", phase=Phase.INIT)
    found = reading(pod(first, container({}, "none"), container({GPU: 1, PERCENT: 50}, "last")))
    assert [(requested.name, requested.phase) for requested in found.containers] == [
        ("first", Phase.INIT),
        ("last", Phase.MAIN),
    ]
    assert (found.scope, found.isolation) == (Scope.NODE, True)
    assert "amd.com/gpu" in found.foreign and GPU not in found.foreign


def test_other_pods_have_no_request() -> None:
    assert read(pod(container({"cpu": 1, names.RESOURCE_GPU: 50}))) is None
    assert read(pod(container({GPU: 0, PRIORITY: "0"}))) is None


def raw(*asked: dict[str, object], **annotations: str) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(asked)]
    metadata = {"name": "p", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": containers}}


ON: Final = frozenset({"koordinator", "hami"})


def test_whole_gpus_are_a_device_plugins_where_the_dialect_is_off() -> None:
    assert requests.request(raw({GPU: 1})) is None
    found = requests.request(raw({GPU: 1}), ON)
    assert found is not None and found.isolation
    with pytest.raises(RequestError) as refused:
        requests.request(raw({GPU: 1, MEMORY: 3000}))
    assert str(refused.value) == (
        f"container c0: {MEMORY}: must be absent, as the dialect hami is off; set"
        " dialects.hami.enabled to true"
    )


def test_a_bound_pod_of_a_device_plugin_has_no_request() -> None:
    """Another scheduler's, also with a privileged container: it is not an error of the node's."""
    bound = raw({GPU: 1})
    bound["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert requests.requested(bound) is None
    assert requests.requested(raw({GPU: 1, MEMORY: 3000})) is not None


def test_koordinators_share_beside_a_gpu_is_refused() -> None:
    for enabled in (ON, DEFAULT):
        with pytest.raises(RequestError) as refused:
            requests.request(raw({names.RESOURCE_GPU: 50}, {GPU: 1}), enabled)
        assert str(refused.value).startswith(
            f"container c1: {GPU}: invalid value 1: must be absent in a pod that requests a share"
        )


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({GPU: 1, MEMORY: "1500m"}, f"{MEMORY}: invalid value 1500m: must be a whole number"),
        ({GPU: "500m"}, f"{GPU}: invalid value 500m: must be a whole number"),
        ({GPU: 1, MEMORY: -1}, f"{MEMORY}: invalid value '-1': must be at least 0"),
    ],
)
def test_what_is_no_number_is_refused(asked: dict[str, object], text: str) -> None:
    with pytest.raises(RequestError) as refused:
        requests.request(raw(asked), ON)
    assert str(refused.value) == f"container c0: {text}"


def is_selected(fields: PodFields, model: str = "", uuid: str = "") -> bool:
    return all(line.matches({}, model, uuid) for line in reading(fields).selector)


@pytest.mark.parametrize(
    ("listed", "model", "matches"),
    [
        ("A100,V100", "NVIDIA A100-SXM4-80GB", True),
        ("a100, v100", "Tesla V100-PCIE-32GB", True),
        ("A100,V100", "Tesla T4", False),
        ("A100", "", False),
        ("NVIDIA-Tesla T4", "Tesla T4", True),  # as HAMi's node annotation has it
        ("NVIDIA-NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("nvidia", "Tesla T4", True),
        ("AMD,INTEL,MLU", "Tesla T4", False),
        ("A100,", "Tesla T4", False),  # the empty name would match every model
    ],
)
def test_models_match_by_a_part_in_any_case(listed: str, model: str, matches: bool) -> None:
    assert is_selected(annotated("nvidia.com/use-gputype", listed), model) == matches
    assert is_selected(annotated("nvidia.com/nouse-gputype", listed), model) != matches


def test_uuids_match_exactly_and_a_denied_one_is_never_used() -> None:
    use, no_use = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
    assert is_selected(annotated(use, "GPU-0, GPU-1,"), uuid="GPU-1")
    assert not is_selected(annotated(use, "GPU-10,gpu-1"), uuid="GPU-1")
    assert not is_selected(annotated(no_use, "GPU-0,GPU-1"), uuid="GPU-1")
    both = pod(container({GPU: 1}), **{use: "GPU-0,GPU-1", no_use: "GPU-1"})
    assert is_selected(both, uuid="GPU-0")
    assert not is_selected(both, uuid="GPU-1")


def test_one_policy_ranks_nodes_and_gpus() -> None:
    of_nodes, of_gpus = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
    assert reading(annotated(of_nodes, "spread")).policy is Policy.SPREAD
    assert reading(annotated(of_gpus, "binpack")).policy is Policy.BINPACK
    assert reading(annotated(of_gpus, "")).policy is None
    both = reading(pod(container({GPU: 1}), **{of_nodes: "binpack", of_gpus: "spread"}))
    assert both.policy is Policy.SPREAD
    assert both.notices == [
        f"metadata.annotations[{of_nodes}]: binpack has no effect: {of_gpus}, spread, ranks nodes"
        " and GPUs"
    ]


def test_a_low_priority_is_accepted_and_has_no_effect() -> None:
    assert reading(pod(container({GPU: 1, PRIORITY: 0}))).notices == []
    assert reading(pod(container({GPU: 1, PRIORITY: 1}))).notices == [
        f"container main: {PRIORITY}: 1 has no effect: containers of a GPU run in turn, by their"
        f" {CORES}"
    ]
