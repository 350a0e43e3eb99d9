"""HAMi's dialect beside its rows: selection of GPUs, policies, and whole GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract import names
from scheduler.core.request import Phase, Policy, Scope
from scheduler.dialects.hami import read
from scheduler.dialects.reading import Container, PodFields, Reading, RequestError
from scheduler.kubernetes import requests

GPU, MEMORY, PERCENT, CORES, PRIORITY = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
)


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


def test_a_request_is_isolated_and_no_device_plugin_allocates_beside_it() -> None:
    found = reading(pod(container({GPU: 1, PERCENT: 50})))
    assert (found.scope, found.isolation) == (Scope.NODE, True)
    assert "amd.com/gpu" in found.foreign and GPU not in found.foreign


def raw(*asked: dict[str, object], **annotations: str) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(asked)]
    metadata = {"name": "p", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": containers}}


def test_whole_gpus_are_a_device_plugins_where_the_dialect_is_off() -> None:
    assert requests.request(raw({GPU: 1})) is None
    with pytest.raises(RequestError, match=r"c1: nvidia\.com/gpu: invalid value 1: must be absent"):
        requests.request(raw({names.RESOURCE_GPU: 50}, {GPU: 1}))


def test_a_bound_pod_of_a_device_plugin_has_no_request() -> None:
    """Another scheduler's, also with a privileged container: it is not an error of the node's."""
    bound = raw({GPU: 1})
    bound["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert requests.requested(bound) is None
    assert requests.requested(raw({GPU: 1, MEMORY: 3000})) is not None


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


@pytest.mark.parametrize("key", ["use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid"])
def test_a_list_has_a_limit(key: str) -> None:
    """Each UUID is hashed, and compared with each GPU of the cluster, at every filter."""
    key = f"nvidia.com/{key}"
    assert reading(annotated(key, ",".join(["GPU-1"] * 1000)))
    with pytest.raises(RequestError) as refused:
        read(annotated(key, ",".join(["GPU-1"] * 1001)))
    assert str(refused.value) == (
        f"metadata.annotations[{key}]: invalid value of 1001 names: must be at most 1000 names;"
        " use the node's annotation gpuslice.io/excluded-gpus, or a nodeSelector"
    )
