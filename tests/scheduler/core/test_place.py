"""The rules of GPU selection. Each test is named after its rule."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.place import Peak
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Phase, Policy, Request, Scope, ratio_of_percent
from scheduler.core.together import assignment
from tests.scheduler.core.one_node import fleet, gpus, minors, placed


def share(
    name: str, percent: int, core: int | None = None, count: int = 1, phase: Phase = Phase.MAIN
) -> ContainerRequest:
    return ContainerRequest(name, phase, 0, count, core, None, ratio_of_percent(percent))


def several(
    *containers: ContainerRequest, policy: Policy | None = None, scope: Scope = Scope.NODE
) -> Request:
    return Request(containers, policy, (), scope)


def one(percent: int, core: int | None = None, count: int = 1, **more: Any) -> Request:
    return several(share("main", percent, core, count), **more)


def full(*minors: int, of: list[Gpu]) -> Fleet:
    return fleet(*([(1000, 100)] if gpu.minor in minors else [] for gpu in of), of=of)


def test_the_pods_policy_outranks_the_profiles() -> None:
    node = fleet([(300, 30)], [])
    for of_pod, of_profile, minor in (
        (None, Policy.BINPACK, 0),
        (None, Policy.SPREAD, 1),
        (Policy.BINPACK, Policy.SPREAD, 0),
        (Policy.SPREAD, Policy.BINPACK, 1),
    ):
        assert placed(node, one(40, policy=of_pod), of_profile).shares[0].minor == minor


# --- several GPUs

TOPOLOGY = [
    Gpu("GPU-0", 0, 1000, numa=0, root="a", link="x"),
    Gpu("GPU-1", 1, 1000, numa=0, root="a"),
    Gpu("GPU-2", 2, 1000, numa=1, root="b"),
    Gpu("GPU-3", 3, 1000, numa=1, root="b", link="x"),
    Gpu("GPU-4", 4, 1000, numa=1, root="c"),
    Gpu("GPU-5", 5, 1000),
]


EIGHT = [Gpu(f"GPU-{n}", n, 1000, numa=n // 4, root=str(n // 2)) for n in range(8)]
"""Two NUMA nodes with two PCIe roots each, and two GPUs at each root."""
TWO_ROOTS = [Gpu(f"GPU-{n}", n, 1000, root=root) for n, root in enumerate("bbbaa")]


@pytest.mark.parametrize(
    ("of", "used", "request_", "expected"),
    [
        # GPUs with the same link are preferred, then the same PCIe root, then the same NUMA node.
        (TOPOLOGY, (), one(10, count=2), [0, 3]),
        (TOPOLOGY, (0,), one(10, count=2), [2, 3]),
        (TOPOLOGY, (0, 2), one(10, count=2), [3, 4]),
        (TOPOLOGY, (0, 2, 4), one(10, count=2), [1, 5]),
        (TOPOLOGY, (), one(10, count=3), [2, 3, 4]),
        (TOPOLOGY, (0, 1), one(10, count=4), [2, 3, 4, 5]),
        # Of several roots with enough GPUs, the one with the fewest GPUs is chosen.
        (TWO_ROOTS, (), one(10, count=2, policy=Policy.SPREAD), [3, 4]),
        # Binpack prefers a root, and then a NUMA node, that already has GPUs in use.
        (EIGHT, (4,), one(100, 100), [5]),
        (EIGHT, (4,), one(100, 100, count=2), [6, 7]),
        (EIGHT, (4, 5), one(100, 100), [6]),
        (EIGHT, (0, 1, 4), one(100, 100), [5]),
        (EIGHT, (0, 4, 5), one(100, 100, count=2), [6, 7]),
        (EIGHT, (4,), one(100, 100, scope=Scope.DEVICE), [5]),
        (EIGHT, (4, 5), one(100, 100, scope=Scope.PCIE, count=2), [6, 7]),
        (EIGHT, (4,), one(100, 100, policy=Policy.SPREAD), [0]),
    ],
)
def test_gpus_are_near_to_each_other_and_to_those_in_use(
    of: list[Gpu], used: tuple[int, ...], request_: Request, expected: list[int]
) -> None:
    assert minors(full(*used, of=of), request_) == {"main": expected}


@pytest.mark.parametrize(
    ("scope", "percents", "found"),
    [
        (Scope.NODE, (60, 60), {"a": [5], "b": [2]}),
        (Scope.NUMA_NODE, (60, 60), {"a": [2], "b": [4]}),
        (Scope.PCIE, (60, 60), Reason.TOGETHER),
        (Scope.DEVICE, (60, 60), Reason.TOGETHER),
        (Scope.DEVICE, (60, 40), {"a": [5], "b": [5]}),
    ],
)
def test_a_required_scope_is_the_whole_pods(
    scope: Scope, percents: tuple[int, int], found: dict[str, list[int]] | Reason
) -> None:
    request = several(*map(share, "ab", percents), scope=scope)
    assert minors(full(1, 3, of=TOPOLOGY), request) == found


@pytest.mark.parametrize(("policy", "expected"), [(Policy.BINPACK, 2), (Policy.SPREAD, 0)])
def test_the_policy_chooses_among_groups_within_the_scope(policy: Policy, expected: int) -> None:
    node = fleet([], [], [(900, 90)], [(900, 90)], [(500, 1)], [], of=TOPOLOGY)
    assert minors(node, one(10, scope=Scope.PCIE, policy=policy)) == {"main": [expected]}


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (one(100), {"main": [0]}),
        (one(99, count=2), {"main": [0, 1]}),
        (one(100, count=2), Reason.PARTITIONED),
        (several(*map(share, "ab", (100, 100))), Reason.PARTITIONED),
        (several(share("a", 100, phase=Phase.INIT), share("b", 100)), {"a": [0], "b": [0]}),
    ],
)
def test_a_partitioned_node_takes_one_whole_gpu_per_pod(
    request_: Request, found: dict[str, list[int]] | Reason
) -> None:
    node = fleet([], [])
    node.set_node(node.row_of("n1"), Reason.FITS, False, True)
    assert minors(node, request_) == found


# --- several containers


@pytest.mark.parametrize(
    ("held", "containers", "found"),
    [
        ((), (share("a", 40, 50), share("b", 20)), 2),
        ((), (share("b", 40), share("a", 20, 99)), 2),
        ((), (share("a", 40, 100), share("b", 20)), 0),
        ((), (share("b", 40), share("a", 20, 100)), 0),
        ([(10, 49)], (share("a", 40, 50), share("b", 20)), 2),
        ([(10, 50)], (share("a", 40, 50), share("b", 20)), 0),
        ([(10, None)], (share("a", 40, 50), share("b", 20)), 2),
        ([(10, 100)], (share("a", 40), share("b", 20)), 0),
        ([(10, 99), (10, None)], (share("a", 40), share("b", 20)), 1),
        ((), (share("a", 40, 50), share("b", 20, phase=Phase.INIT)), 2),
    ],
)
def test_containers_with_and_without_core_share_a_gpu_as_two_pods_do(
    held: list[tuple[int, int | None]], containers: tuple[ContainerRequest, ...], found: int
) -> None:
    """found: the number of peaks. 0: the pod does not fit on the node's only GPU."""
    node, request = fleet(held), several(*containers)
    got = minors(node, request)
    if not found:
        assert isinstance(got, Reason)
        return
    assert got == {each.name: [0] for each in containers}
    peaks = placed(node, request).peaks
    assert [*peaks[1:]] == [Peak("GPU-0", 0, 0, 0, None)] * (found - 1)


@pytest.mark.parametrize(
    ("held", "policy", "containers", "found"),
    [
        # The fullness of a GPU includes the containers that are placed before.
        ((600, 0), Policy.BINPACK, (share("a", 70), share("b", 10)), [1, 1]),
        ((100, 850), Policy.BINPACK, (share("a", 20), share("b", 10)), [0, 1]),
        ((0, 104), Policy.SPREAD, (share("a", 10), share("b", 10)), [0, 0]),
        # The larger share of memory and core comes first.
        ((0, 0), Policy.FIRST, (share("a", 52), share("b", 49, 10)), [1, 0]),
        # The policy's choice for b would leave no GPU for a.
        ((450, 0), Policy.SPREAD, (share("a", 60, 1), share("b", 50, 50)), [1, 0]),
    ],
)
def test_two_containers_are_placed_one_after_the_other(
    held: tuple[int, int],
    policy: Policy,
    containers: tuple[ContainerRequest, ...],
    found: list[int],
) -> None:
    node, (a, b) = fleet(*([(size, 0)] for size in held)), found
    assert minors(node, several(*containers, policy=policy)) == {"a": [a], "b": [b]}


@pytest.mark.parametrize(
    ("percents", "scope", "found"),
    [
        ((30, 30), Scope.NODE, [[1], [1]]),
        ((30, 40), Scope.NODE, [[2], [1]]),
        ((30, 40), Scope.DEVICE, [[2], [2]]),
        ((15,) * 4, Scope.NODE, [[0], [1], [1], [1]]),
    ],
)
def test_first_takes_the_lowest_minor(
    percents: tuple[int, ...], scope: Scope, found: list[list[int]]
) -> None:
    """The lowest minor is taken even if other GPUs are fuller, emptier or nearer."""
    node = fleet([(800, 1)], [(400, 1)], [(300, 1)], [(690, 1)])
    request = several(*map(share, "abcd", percents), policy=Policy.FIRST, scope=scope)
    assert minors(node, request) == dict(zip("abcd", found, strict=False))
    assert assignment(node, request, node.row_of("n1")) == dict(enumerate(found))
    assert minors(node, one(30, count=2, policy=Policy.FIRST)) == {"main": [1, 2]}


def test_containers_that_fit_only_in_another_way_are_refused() -> None:
    """50 + 30 and 40 + 30 percent would fit. But containers are placed in order of size, each on
    the fullest GPU on which it fits. One with more GPUs precedes one with a larger share."""
    node = fleet([(200, 1)], [(300, 1)])
    assert minors(node, several(*map(share, "abcd", (50, 40, 30, 30)))) is Reason.TOGETHER
    less = several(*map(share, "abcd", (50, 40, 30, 20)))
    assert minors(node, less) == {"a": [1], "b": [0], "c": [0], "d": [1]}
    two = several(share("a", 60), share("b", 40, count=2))
    assert minors(node, two) is Reason.TOGETHER
    assert minors(node, one(75, count=2)) is Reason.GPUS
    assert minors(fleet([], [(300, 1)]), two) == {"a": [0], "b": [0, 1]}


@pytest.mark.parametrize(
    ("first", "size", "peak"),
    [
        (share("a", 33), None, (658, 66)),
        (share("a", 33), 329, (658, 65)),
        (share("a", 33, phase=Phase.INIT), 1, (329, 33)),  # 329 of 997 bytes are 32.998 %
    ],
)
def test_peaks_have_the_requested_percent_or_a_floor(
    first: ContainerRequest, size: int | None, peak: tuple[int, int]
) -> None:
    second = ContainerRequest("b", memory_bytes=size) if size else share("b", 33)
    found = placed(fleet(of=gpus(1, 997)), several(first, second))
    assert found.peaks == (Peak("GPU-0", 0, *peak, None),)


def test_a_ratio_from_bytes_is_exact_where_a_float_is_not() -> None:
    size = ContainerRequest("main", memory_bytes=29 * 2**20)
    found = placed(fleet(of=gpus(1, 100 * 2**20)), several(size))
    assert found.peaks[0].memory_percent == 29 > int((29 * 2**20) / float(100 * 2**20) * 100)
