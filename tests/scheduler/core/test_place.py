"""The rules of GPU selection, each by its name."""

from __future__ import annotations

from fractions import Fraction

import pytest

from scheduler.core.fit import fit
from scheduler.core.fleet import Gpu
from scheduler.core.place import Peak, Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Phase, Policy, Request, Scope, ratio_of_percent
from scheduler.core.together import assignment
from tests.scheduler.core.one_node import Held, fleet, gpus, minors


def one(
    percent: int | None = None,
    core: int | None = None,
    size: int | None = None,
    count: int = 1,
    policy: Policy | None = None,
    scope: Scope = Scope.NODE,
) -> Request:
    containers = [ContainerRequest("main", Phase.MAIN, 0, count, core, size, ratio(percent))]
    return Request(containers, policy, (), scope)


def ratio(percent: int | None) -> Fraction | None:
    return None if percent is None else ratio_of_percent(percent)


def several(
    *containers: ContainerRequest, policy: Policy | None = None, scope: Scope = Scope.NODE
) -> Request:
    return Request(containers, policy, (), scope)


def main(name: str, percent: int, core: int | None = None, count: int = 1) -> ContainerRequest:
    return ContainerRequest(name, Phase.MAIN, 0, count, core, None, ratio(percent))


def init(name: str, order: int, percent: int, core: int | None = None) -> ContainerRequest:
    return ContainerRequest(name, Phase.INIT, order, 1, core, None, ratio(percent))


# --- policy


def test_the_pods_policy_outranks_the_profiles() -> None:
    node = fleet([(300, 30)], [])
    row = node.row_of("n1")

    def chosen(policy: Policy | None, default: Policy) -> int:
        found = place(node, one(40, policy=policy), row, default)
        assert isinstance(found, Placement)
        return found.shares[0].minor

    assert chosen(None, Policy.BINPACK) == 0
    assert chosen(None, Policy.SPREAD) == 1
    assert chosen(Policy.BINPACK, Policy.SPREAD) == 0
    assert chosen(Policy.SPREAD, Policy.BINPACK) == 1


# --- several GPUs

TOPOLOGY = [
    Gpu("GPU-0", 0, 1000, numa=0, root="a", link="x"),
    Gpu("GPU-1", 1, 1000, numa=0, root="a"),
    Gpu("GPU-2", 2, 1000, numa=1, root="b"),
    Gpu("GPU-3", 3, 1000, numa=1, root="b", link="x"),
    Gpu("GPU-4", 4, 1000, numa=1, root="c"),
    Gpu("GPU-5", 5, 1000),
]


@pytest.mark.parametrize(
    ("full", "count", "expected"),
    [
        ((), 2, [0, 3]),
        ((0,), 2, [2, 3]),
        ((0, 2), 2, [3, 4]),
        ((0, 2, 4), 2, [1, 5]),
        ((), 3, [2, 3, 4]),
        ((0, 1), 4, [2, 3, 4, 5]),
    ],
)
def test_one_link_then_one_root_then_one_numa_node(
    full: tuple[int, ...], count: int, expected: list[int]
) -> None:
    """Any GPUs are taken if none suffices."""
    held: list[list[Held]] = [[(1000, 1)] if minor in full else [] for minor in range(6)]
    assert minors(fleet(*held, of=TOPOLOGY), one(10, count=count)) == {"main": expected}


def test_of_groups_the_one_with_the_fewest_gpus_to_spare() -> None:
    of = [Gpu(f"GPU-{n}", n, 1000, root="abbb"[n]) for n in range(4)]
    of.append(Gpu("GPU-4", 4, 1000, root="a"))
    assert minors(fleet(of=of), one(10, count=2)) == {"main": [0, 4]}


@pytest.mark.parametrize(
    ("used", "request_", "expected"),
    [
        ((4,), one(100, 100), [5]),
        ((4,), one(100, 100, count=2), [6, 7]),
        ((4, 5), one(100, 100), [6]),
        ((0, 1, 4), one(100, 100), [5]),
        ((0, 4, 5), one(100, 100, count=2), [6, 7]),
        ((4,), one(100, 100, scope=Scope.DEVICE), [5]),
        ((4, 5), one(100, 100, scope=Scope.PCIE, count=2), [6, 7]),
        ((4,), one(100, 100, policy=Policy.SPREAD), [0]),
    ],
)
def test_binpack_keeps_to_the_pcie_root_and_the_numa_node_in_use(
    used: tuple[int, ...], request_: Request, expected: list[int]
) -> None:
    """Two NUMA nodes of two PCIe roots of two GPUs."""
    of = [Gpu(f"GPU-{n}", n, 1000, numa=n // 4, root=str(n // 2)) for n in range(8)]
    held: list[list[Held]] = [[(1000, 100)] if n in used else [] for n in range(8)]
    assert minors(fleet(*held, of=of), request_) == {"main": expected}


@pytest.mark.parametrize(
    ("scope", "count", "expected"),
    [
        (Scope.PCIE, 2, [2, 3]),
        (Scope.PCIE, 3, Reason.SCOPE),
        (Scope.NUMA_NODE, 3, [2, 3, 4]),
        (Scope.NUMA_NODE, 4, Reason.SCOPE),
        (Scope.DEVICE, 1, [5]),
        (Scope.DEVICE, 2, Reason.SCOPE),
        (Scope.NODE, 6, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_required_scope_is_a_must(scope: Scope, count: int, expected: list[int] | Reason) -> None:
    held: list[list[Held]] = [[(1000, 1)] if minor == 1 else [] for minor in range(6)]
    if scope is Scope.NODE:
        held[1] = []
    found = minors(fleet(*held, of=TOPOLOGY), one(10, count=count, scope=scope))
    assert found == (expected if isinstance(expected, Reason) else {"main": expected})


def test_a_required_scope_is_the_whole_pods() -> None:
    pair = [main("a", 60), main("b", 60)]
    full: list[list[Held]] = [[], [(1000, 1)], [], [(1000, 1)], [], []]
    assert minors(fleet(*full, of=TOPOLOGY), several(*pair)) == {"a": [5], "b": [2]}
    numa = several(*pair, scope=Scope.NUMA_NODE)
    assert minors(fleet(*full, of=TOPOLOGY), numa) == {"a": [2], "b": [4]}
    assert minors(fleet(*full, of=TOPOLOGY), several(*pair, scope=Scope.PCIE)) is Reason.TOGETHER
    one_gpu = several(*pair, scope=Scope.DEVICE)
    assert minors(fleet(*full, of=TOPOLOGY), one_gpu) is Reason.TOGETHER
    halves = several(main("a", 60), main("b", 40), scope=Scope.DEVICE)
    assert minors(fleet(*full, of=TOPOLOGY), halves) == {"a": [5], "b": [5]}


@pytest.mark.parametrize(("policy", "expected"), [(Policy.BINPACK, 4), (Policy.SPREAD, 0)])
def test_the_policy_chooses_among_groups_within_the_scope(policy: Policy, expected: int) -> None:
    held: list[list[Held]] = [[], [], [(500, 1)], [(500, 1)], [(500, 1)], []]
    request = one(20, scope=Scope.PCIE, policy=policy)
    assert minors(fleet(*held, of=TOPOLOGY), request) == {"main": [expected]}


# --- several containers


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (one(30, policy=Policy.FIRST), [[1]]),
        (one(30, count=2, policy=Policy.FIRST), [[1, 2]]),
        (one(70, policy=Policy.FIRST), [[2]]),
        (several(main("a", 30), main("b", 30), policy=Policy.FIRST), [[1], [1]]),
        (several(main("a", 30), main("b", 40), policy=Policy.FIRST), [[2], [1]]),
        (several(main("a", 30), main("b", 40), policy=Policy.FIRST, scope=Scope.DEVICE), [[2]] * 2),
        (
            several(*[main(name, 15) for name in "abcd"], policy=Policy.FIRST),
            [[0], [1], [1], [1]],
        ),
    ],
)
def test_first_takes_the_lowest_minor_that_fits(request_: Request, found: list[list[int]]) -> None:
    """Whatever is fuller, emptier or nearer."""
    node = fleet([(800, 1)], [(400, 1)], [(300, 1)], [(690, 1)], of=gpus(4))
    placed = minors(node, request_)
    assert not isinstance(placed, Reason)
    assert list(placed.values()) == found
    row = node.row_of("n1")
    assert fit(node, request_, node.rows_of(["n1"]))[0].all()
    if len(request_.containers) > 1:
        chosen = assignment(node, request_, row)
        assert chosen is not None
        assert [chosen[number] for number in range(len(request_.containers))] == found


def test_containers_that_fit_only_in_another_way_are_refused() -> None:
    """50 + 30 and 40 + 30 would fit. The largest takes the fullest GPU on which it fits; it is the
    one with the most GPUs, then with the most of one."""
    node = fleet([(200, 1)], [(300, 1)], of=gpus(2))
    request = several(main("a", 50), main("b", 40), main("c", 30), main("d", 30))
    assert minors(node, request) is Reason.TOGETHER
    less = several(main("a", 50), main("b", 40), main("c", 30), main("d", 20))
    assert minors(node, less) == {"a": [1], "b": [0], "c": [0], "d": [1]}
    two = several(main("a", 60), main("b", 40, count=2))
    assert minors(node, two) is Reason.TOGETHER
    assert minors(fleet([], [(300, 1)], of=gpus(2)), two) == {"a": [0], "b": [0, 1]}


def test_peaks_have_the_requested_percent_or_the_floor_of_the_bytes() -> None:
    node = fleet(of=[Gpu("GPU-0", 0, 997)])
    row = node.row_of("n1")
    by_ratio = place(node, several(main("a", 33), main("b", 33)), row)
    assert isinstance(by_ratio, Placement)
    assert by_ratio.peaks == (Peak("GPU-0", 0, 658, 66, None),)
    both = place(node, several(main("a", 33), ContainerRequest("b", memory_bytes=329)), row)
    assert isinstance(both, Placement)
    assert both.peaks == (Peak("GPU-0", 0, 658, 65, None),)
    after = place(node, several(init("a", 0, 33), ContainerRequest("b", memory_bytes=1)), row)
    assert isinstance(after, Placement)
    assert after.peaks == (Peak("GPU-0", 0, 329, 33, None),), "329 bytes are 32.998 percent"


def test_a_ratio_from_bytes_is_exact_where_a_float_is_not() -> None:
    node = fleet(of=[Gpu("GPU-0", 0, 100 * 2**20)])
    found = place(node, one(size=29 * 2**20), node.row_of("n1"))
    assert isinstance(found, Placement)
    assert found.peaks[0].memory_percent == 29 > int((29 * 2**20) / float(100 * 2**20) * 100)
