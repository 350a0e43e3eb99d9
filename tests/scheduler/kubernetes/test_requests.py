"""A pod's request, and the pods that are refused."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from scheduler.core.request import Phase, Request, Requirement, Scope
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler.objects import container, pod

HINT = names.ANNOTATION_ALLOCATE_HINT
HALF = container("main", core=50, ratio=50)


def request(raw: dict[str, Any]) -> Request:
    read = requests.request(raw)
    assert read is not None
    return read


def hinted(hint: object) -> dict[str, Any]:
    """Return a pod with an allocation hint for GPUs."""
    return pod(HALF, annotations={HINT: json.dumps({"gpu": hint})})


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        requests.request(raw)
    return str(caught.value)


def test_containers_count_while_kubernetes_runs_them() -> None:
    first, second = container("first", ratio=10), container("second", ratio=30)
    inits = [first, container("beside", sidecar=True, ratio=20), {"name": "no-gpu"}, second]
    read = request(pod(HALF, container("other", ratio=5), inits=inits))
    assert [(each.name, each.phase, each.order) for each in read.containers] == [
        ("first", Phase.INIT, 0),
        ("beside", Phase.SIDECAR, 1),
        ("second", Phase.INIT, 3),
        ("main", Phase.MAIN, 0),
        ("other", Phase.MAIN, 1),
    ]
    assert list(read.moments) == [(0,), (1, 2), (1,), (2,), (2,)]
    assert read.peak_of(1000) == (750, 50)


def test_the_label_of_isolation_is_read_in_any_case() -> None:
    for value in ("hami-core", "HAMi-core", "HAMI-CORE"):
        assert request(pod(HALF, labels={names.LABEL_ISOLATION_PROVIDER: value})).isolation
    assert not request(pod(HALF)).isolation


def test_two_containers_of_one_name_are_refused() -> None:
    """The API server refuses such a pod too, but `simulate` may read one from a file."""
    assert "invalid value main, main: must be unique" in refused(pod(HALF, HALF))


def test_a_share_in_the_pods_overhead_is_refused() -> None:
    raw = pod(HALF)
    raw["spec"]["overhead"] = {"cpu": "1", names.RESOURCE_CORE: "5"}
    text = f"spec.overhead[{names.RESOURCE_CORE}]: invalid value 5: must be absent"
    assert refused(raw).startswith(text)


def test_the_hints_scope() -> None:
    scopes = {"Device": Scope.DEVICE, "PCIe": Scope.PCIE, "NUMANode": Scope.NUMA_NODE}
    for text, scope in {**scopes, "Node": Scope.NODE, "": Scope.NODE}.items():
        raw = hinted({"requiredTopologyScope": text, "vfSelector": None})
        assert request(raw).scope is scope


def test_the_hints_selector() -> None:
    expressions = [
        {"key": "slot", "operator": "In", "values": ["1", "2"]},
        {"key": "slot", "operator": "NotIn", "values": ["2"]},
        {"key": "nvlink", "operator": "Exists"},
        {"key": "mig", "operator": "DoesNotExist", "values": []},
    ]
    selector = {"matchLabels": {"model": "A100"}, "matchExpressions": expressions}
    read = request(hinted({"selector": selector}))
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


def _expression(**fields: object) -> dict[str, Any]:
    return {"selector": {"matchExpressions": [fields]}}


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        ({"allocateStrategy": "ApplyForAll"}, "invalid value allocateStrategy: must be"),
        ({"exclusivePolicy": "DeviceLevel"}, "invalid value exclusivePolicy: must be"),
        ({"vfSelector": {"a": 1}}, "invalid value vfSelector: must be"),
        ({"requiredTopologyScope": 1}, "1: must be one of Device, PCIe"),
        ([1], "gpu: must be an object, not list"),
        ({"selector": {"matchFields": {"a": 1}}}, "invalid value matchFields: must be"),
        ({"selector": {"matchLabels": {"a": 1}}}, "matchLabels.a: invalid value 1: must be"),
        ({"selector": {"matchExpressions": {"a": 1}}}, "matchExpressions: must be a list"),
        ({"selector": {"matchExpressions": [1]}}, "[0]: must be an object, not int"),
        (_expression(), "[0].key: invalid value None"),
        (_expression(key=""), "[0].key: invalid value ''"),
        (
            _expression(key="a", operator="Gt"),
            "[0].operator: invalid value 'Gt': must be one of In, NotIn, Exists, DoesNotExist",
        ),
        *(
            (_expression(key="a", operator=operator, values=values), f"[0].values: {text}")
            for operator, values, text in (
                ("In", [1], "invalid value [1]: must be strings"),
                ("In", [], "invalid value []: must be one or more with In"),
                ("Exists", ["b"], "invalid value ['b']: must be empty with Exists"),
            )
        ),
    ],
)
def test_hints_that_are_not_honoured_are_refused_by_name(hint: object, text: str) -> None:
    assert refused(hinted(hint)).startswith(f"metadata.annotations[{HINT}]: gpu")
    assert text in refused(hinted(hint))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{".ljust(40), f"invalid value '{'{'.ljust(40)}': must be JSON: Expecting"),
        ("[" * 16_000, f"invalid value '{'[' * 40}...': must be JSON: "),
        ("[]", "must be an object, not list"),
        ('{"rdma":{"selector":{}}}', "invalid value rdma: must be one of gpu"),
    ],
    ids=lambda text: text[:9],
)
def test_a_hint_that_is_no_object_of_gpus_is_refused(written: str, text: str) -> None:
    said = refused(pod(HALF, annotations={HINT: written}))
    assert said.startswith(f"metadata.annotations[{HINT}]") and text in said


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
    for read in (translate.node, translate.device, agent_lease):
        read(raw)
        read(data.draw(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON)))


def test_every_combination_that_is_not_in_the_rows_is_illegal() -> None:
    amounts: dict[str, Any] = {"gpu": 50, "core": 50, "memory": 1 << 30, "ratio": 50, "shared": 1}
    legal = set()
    for mask in range(1, 32):
        chosen = {name: amounts[name] for bit, name in enumerate(amounts) if mask >> bit & 1}
        with contextlib.suppress(RequestError):
            request(pod(container("main", **chosen)))
            legal.add(" ".join(chosen))
    alone = {"gpu", "memory", "ratio", "memory shared", "ratio shared"}
    assert legal == {*alone, "core memory", "core ratio", "core memory shared", "core ratio shared"}


@pytest.mark.parametrize("value", [True, [1], {"a": 1}])
def test_equal_and_unhashable_values_of_python_are_parsed_apart(value: object) -> None:
    assert request(pod(container("main", ratio=1))) == request(pod(container("main", ratio="1")))
    assert "must be a quantity" in refused(pod(container("main", ratio=value)))
