"""A pod's request, and the requests that are refused."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from scheduler.core.request import Phase, Requirement, Scope
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.leases import agent_lease
from tests.scheduler.kubernetes.requests_scene import HALF, refused, request
from tests.scheduler.objects import container, pod

HINT = names.ANNOTATION_ALLOCATE_HINT


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


def test_two_containers_of_one_name_are_refused() -> None:
    """Grants are keyed by name. The API server refuses such a pod; a file may contain one."""
    assert "invalid value main, main: must be unique" in refused(pod(HALF, HALF))


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
    for read in (translate.node, translate.device, agent_lease):
        read(raw)
        read(data.draw(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON)))


def test_every_combination_that_is_not_in_the_rows_is_illegal() -> None:
    amounts: dict[str, Any] = {"gpu": 50, "core": 50, "memory": 1000, "ratio": 50, "shared": 1}
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
