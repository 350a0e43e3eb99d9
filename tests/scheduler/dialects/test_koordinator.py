"""Koordinator's dialect: each row of its table of requests, container by container.

Source: koordinator's deviceshare plugin. Where it sums a pod's containers, or accepts a request
that never fits, this scheduler differs, and the row notes it.
"""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import Any

import pytest

from scheduler.core.request import ContainerRequest, Request
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes import requests

Mi, Gi = 2**20, 2**30
G = "koordinator.sh/gpu"
CORE, MEM, RATIO, SHARED = f"{G}-core", f"{G}-memory", f"{G}-memory-ratio", f"{G}.shared"


def pod(*containers: dict[str, object], **inits: dict[str, object]) -> dict[str, Any]:
    listed = [
        {"name": f"c{number}", "resources": {"requests": asked, "limits": asked}}
        for number, asked in enumerate(containers)
    ]
    before = [{"name": name, "resources": {"requests": asked}} for name, asked in inits.items()]
    return {"metadata": {}, "spec": {"containers": listed, "initContainers": before}}


def asked(*containers: dict[str, object]) -> Request:
    request = requests.request(pod(*containers))
    assert request is not None
    return request


# request, GPUs, then per GPU: core, bytes, percent of memory
TABLE: list[tuple[dict[str, object], int, int | None, int | None, int | None]] = [
    ({G: 50}, 1, 50, None, 50),
    ({G: 100}, 1, 100, None, 100),
    ({G: 200}, 2, 100, None, 100),
    ({G: "50"}, 1, 50, None, 50),
    ({RATIO: 50}, 1, None, None, 50),
    ({RATIO: 200}, 2, None, None, 100),
    ({CORE: 50, RATIO: 50}, 1, 50, None, 50),
    ({CORE: 50, RATIO: 200}, 2, 25, None, 100),
    ({CORE: 25, RATIO: 200}, 2, 12, None, 100),
    ({CORE: 100, RATIO: 200}, 2, 50, None, 100),
    ({CORE: 100, MEM: "8Gi"}, 1, 100, 8 * Gi, None),
    # Koordinator's webhook divides it over two GPUs; it fits only so.
    ({CORE: 200, MEM: "64Gi"}, 2, 100, 32 * Gi, None),
    ({CORE: 200, MEM: "64Gi", SHARED: 2}, 2, 100, 32 * Gi, None),
    ({MEM: "8Gi"}, 1, None, 8 * Gi, None),
    ({MEM: "100Mi"}, 1, None, 100 * Mi, None),
    ({CORE: 60, MEM: "4Gi"}, 1, 60, 4 * Gi, None),
    ({SHARED: 1, RATIO: 100}, 1, None, None, 100),
    ({SHARED: 2, CORE: 100, RATIO: 100}, 2, 50, None, 50),
    ({SHARED: 2, RATIO: 200}, 2, None, None, 100),
    ({SHARED: 1, CORE: 50, RATIO: 50}, 1, 50, None, 50),
    ({SHARED: 4, MEM: "160Gi"}, 4, None, 40 * Gi, None),
    ({SHARED: 4, MEM: "160G"}, 4, None, 40_000_000_000, None),
    ({SHARED: 3, MEM: "10Gi"}, 3, None, 3579139413, None),
    ({SHARED: 2, CORE: 100, MEM: "64Gi"}, 2, 50, 32 * Gi, None),
    # Kubernetes treats zero as no request.
    ({CORE: 0, RATIO: 50, SHARED: 0, MEM: "0"}, 1, None, None, 50),
    ({RATIO: 50, "nvidia.com/gpu": 0, "koordinator.sh/rdma": 0, "cpu": "2"}, 1, None, None, 50),
]


@pytest.mark.parametrize(("resources", "gpus", "core", "memory", "percent"), TABLE, ids=repr)
def test_legal(
    resources: dict[str, object],
    gpus: int,
    core: int | None,
    memory: int | None,
    percent: int | None,
) -> None:
    (requested,) = asked(resources).containers
    ratio = None if percent is None else Fraction(percent, 100)
    assert (
        requested.gpus,
        requested.core_percent,
        requested.memory_bytes,
        requested.memory_ratio,
    ) == (
        gpus,
        core,
        memory,
        ratio,
    )


# Others, whose texts are the admission policies' too: tests/cluster/admission/test_requests.py.
ILLEGAL: list[tuple[dict[str, object], str]] = [
    ({CORE: 250, RATIO: 200}, f"{CORE}: invalid value 250: must be 1 to 100, or a multiple of 100"),
    ({CORE: 101, RATIO: 50}, f"{CORE}: invalid value 101: must be 1 to 100, or"),
    ({CORE: 101, MEM: "1Gi"}, f"{CORE}: invalid value 101: must be 1 to 100, or"),
    ({SHARED: 1, CORE: 50}, f"resources: invalid value {CORE}=50, {SHARED}=1: must be"),
    ({G: 50, SHARED: 1}, f"resources: invalid value {G}=50, {SHARED}=1: must be"),
    ({G: 50, MEM: "1Gi"}, f"resources: invalid value {G}=50, {MEM}={Gi}: must be"),
    ({SHARED: 1, RATIO: 101}, f"{RATIO}: invalid value 101: must be 1 to 100 percent for 1 GPU"),
    ({SHARED: 2, CORE: 101, MEM: "1Gi"}, f"{CORE}: invalid value 101: must be a multiple of"),
    ({SHARED: 2, CORE: 250, MEM: "1Gi"}, f"{CORE}: invalid value 250: must be 2 to 200 percent"),
    ({G: "half"}, f"{G}: invalid value 'half': must be a quantity"),
    ({RATIO: -1}, f"{RATIO}: invalid value '-1': must be at least 0"),
    ({MEM: ["8Gi"]}, f"{MEM}: invalid value of type list: must be a quantity"),
    ({G: 0.5}, f"{G}: invalid value 0.5: must be a whole number"),
    ({CORE: "1500m", RATIO: 50}, f"{CORE}: invalid value 1500m: must be a whole number"),
    ({MEM: "0.3Ki"}, f"{MEM}: invalid value 0.3Ki: must be a whole number"),
]


@pytest.mark.parametrize(("resources", "text"), ILLEGAL, ids=repr)
def test_illegal_is_refused_with_the_field_its_value_and_what_is_allowed(
    resources: dict[str, object], text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        requests.request(pod({}, resources))
    assert str(caught.value).startswith("container c1: "), caught.value
    assert text in str(caught.value)


def test_what_is_whole_may_be_written_as_a_fraction() -> None:
    assert asked({MEM: "1.5Gi", CORE: "50000m"}) == asked({MEM: 3 << 29, CORE: 50})


def test_whole_gpus_of_a_device_plugin_are_not_ours() -> None:
    """nvidia.com/gpu: Koordinator allocates these; here the vendor's device plugin does."""
    for name in ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"):
        assert requests.request(pod({name: 1})) is None
        assert requests.request(pod({name: 2})) is None


def test_every_combination_that_is_not_in_the_table_is_illegal() -> None:
    amounts: dict[str, object] = {G: 50, CORE: 50, MEM: 1000, RATIO: 50, SHARED: 1}
    legal = set()
    for mask in range(1, 32):
        chosen = {name: amounts[name] for bit, name in enumerate(amounts) if mask >> bit & 1}
        with contextlib.suppress(RequestError):
            asked(chosen)
            legal.add(frozenset(chosen))
    assert legal == {
        frozenset(each)
        for each in (
            {G},
            {MEM},
            {RATIO},
            {CORE, MEM},
            {CORE, RATIO},
            {SHARED, MEM},
            {SHARED, RATIO},
            {SHARED, CORE, MEM},
            {SHARED, CORE, RATIO},
        )
    }


def test_two_containers_of_half_a_gpu_are_two_halves_and_not_one_whole_gpu() -> None:
    """Koordinator sums them: one GPU without a limit."""
    half: dict[str, object] = {CORE: 50, RATIO: 50}
    request = asked(half, half)
    assert [
        (requested.name, requested.gpus, requested.memory_ratio) for requested in request.containers
    ] == [
        ("c0", 1, Fraction(1, 2)),
        ("c1", 1, Fraction(1, 2)),
    ]


def test_a_pod_without_a_request() -> None:
    assert requests.request(pod({}, {"cpu": "1"})) is None
    assert requests.request({}) is None
    assert requests.request(pod({G: 0})) is None


@pytest.mark.parametrize("value", [True, [1], {"a": 1}])
def test_equal_and_unhashable_values_of_python_are_parsed_apart(
    value: object,
) -> None:
    one = requests.request(pod({RATIO: 1}))
    assert one is not None and one == requests.request(pod({RATIO: "1"}))
    with pytest.raises(RequestError, match="must be a quantity"):
        requests.request(pod({RATIO: value}))


def test_a_limit_alone_is_a_request() -> None:
    container = {"name": "main", "resources": {"limits": {RATIO: 50}}}
    request = requests.request({"spec": {"containers": [container]}})
    assert request is not None
    assert list(request.containers) == [ContainerRequest("main", memory_ratio=Fraction(1, 2))]


def test_ratio_becomes_the_bytes_that_koordinator_writes() -> None:
    for total, percent, exact in (
        (24 * Gi, 10, 2576980377),
        (24 * Gi, 25, 6 * Gi),
        (24 * Gi, 33, 8504035246),
        (24 * Gi, 75, 18 * Gi),
        (46068 * Mi, 50, 23034 * Mi),
        (83201216 * 1024, 50, 41600608 * 1024),
        (15360 * Mi, 75, 11520 * Mi),
    ):
        assert asked({RATIO: percent}).containers[0].bytes_of(total) == exact
