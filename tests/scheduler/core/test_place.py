"""The rules of GPU selection, each by its name."""

from __future__ import annotations

import pytest

from scheduler.core.fleet import Gpu
from scheduler.core.place import Peak, Placement, Share, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Ask, Phase, Policy, Request, Requirement, Scope
from scheduler.core.search import Steps
from tests.scheduler.core.one_node import Held, fleet, gpus, minors


def one(
    percent: int | None = None,
    core: int | None = None,
    size: int | None = None,
    count: int = 1,
    policy: Policy | None = None,
    scope: Scope = Scope.NODE,
) -> Request:
    return Request([Ask("main", Phase.MAIN, 0, count, core, size, percent)], policy, (), scope)


def several(*asks: Ask, policy: Policy | None = None, scope: Scope = Scope.NODE) -> Request:
    return Request(asks, policy, (), scope)


def main(name: str, percent: int, core: int | None = None, count: int = 1) -> Ask:
    return Ask(name, Phase.MAIN, 0, count, core, None, percent)


def init(name: str, order: int, percent: int, core: int | None = None) -> Ask:
    return Ask(name, Phase.INIT, order, 1, core, None, percent)


def sidecar(name: str, order: int, percent: int, core: int | None = None) -> Ask:
    return Ask(name, Phase.SIDECAR, order, 1, core, None, percent)


# --- free capacity


NONE: list[Held] = []
THIRDS: list[Held] = [(339, 10), (339, 10)]

RULES: dict[str, list[tuple[list[list[Held]], Request, Reason | None]]] = {
    # Koordinator truncates the ratio of a tiny share to 0, so the GPU appears empty.
    "a whole GPU is not placed beside less than a percent": [
        ([[(1, None)]], one(100, core=100), Reason.MEMORY_AND_CORE),
        ([[(1, 5)]], one(100), Reason.MEMORY),
    ],
    # In Koordinator three shares of 33.9 % by bytes count as 99 %, and a fourth of 1 % is accepted.
    "shares by ratio are checked against the bytes that are left": [
        ([[*THIRDS, (318, 10)]], one(1), Reason.MEMORY),
        ([THIRDS], one(33), Reason.MEMORY),
        ([THIRDS], one(32), None),
    ],
    "a share without core and one with all of it do not meet": [
        ([[(10, None)]], one(10, core=100), Reason.CORE),
        ([[(10, None)]], one(10, core=99), None),
        ([[(10, 100)]], one(10), Reason.CORE),
        ([[(10, 99)]], one(10), None),
    ],
    # A GPU without memory is left out when the inventory is read.
    "a GPU without memory in its inventory is not one without a limit": [
        ([], one(1), Reason.TOO_FEW_GPUS)
    ],
    "core alone decides for shares of little memory": [
        ([[(10, 60)]], one(1, core=41), Reason.CORE),
        ([[(10, 60)]], one(1, core=40), None),
    ],
    "all of the memory leaves room for no other share": [
        ([[(1000, None)]], one(size=1), Reason.MEMORY),
        ([NONE], one(100), None),
    ],
    "more than a GPU is told apart from a full one": [
        ([[(999, 1)]], one(size=1001), Reason.GPU_TOO_SMALL),
        ([[(999, 1)]], one(size=1000), Reason.MEMORY),
        ([[(600, 1)], [(1, 60)]], one(50, core=50), Reason.MEMORY_AND_CORE),
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_room_on_one_gpu(rule: str) -> None:
    """The first four are defects of Koordinator. None: placed on the first GPU."""
    for held, asked, reason in RULES[rule]:
        assert minors(fleet(*held), asked) == ({"main": [0]} if reason is None else reason)


def test_ratios_are_floored_and_so_all_of_them_fit() -> None:
    odd = fleet(of=[Gpu("GPU-0", 0, 101)])
    for _ in range(10):
        found = place(odd, one(10), odd.row_of("n1"))
        assert isinstance(found, Placement)
        assert found.peaks == (Peak("GPU-0", 0, 10, 10, None),)
        odd.take(odd.row_of("n1"), 0, 10, None)
    assert minors(odd, one(1)) == {"main": [0]}
    assert minors(odd, one(2)) is Reason.MEMORY


def test_more_than_a_gpu_is_told_apart_from_a_full_one() -> None:
    assert minors(fleet([(999, 1)]), one(size=1001)) is Reason.GPU_TOO_SMALL
    assert minors(fleet([(999, 1)]), one(size=1000)) is Reason.MEMORY
    assert minors(fleet([(600, 1)], [(1, 60)]), one(50, core=50)) is Reason.MEMORY_AND_CORE


# --- policy


def test_binpack_takes_the_fullest_gpu_with_room() -> None:
    node = fleet([(300, 30)], [(500, 50)], [(900, 90)], [])
    assert minors(node, one(40, core=40)) == {"main": [1]}
    assert minors(node, one(60, core=60)) == {"main": [0]}
    assert minors(node, one(80, core=80)) == {"main": [3]}


def test_binpack_keeps_whole_gpus_whole() -> None:
    """Even if an empty, smaller GPU would be filled more."""
    mixed = fleet([], [], of=[Gpu("GPU-0", 0, 200), Gpu("GPU-1", 1, 10_000)])
    assert minors(mixed, one(size=100)) == {"main": [0]}, "of empty ones the better fit"
    mixed.take(mixed.row_of("n1"), 1, 5, None)
    assert minors(mixed, one(size=100)) == {"main": [1]}


def test_spread_takes_the_emptiest_gpu() -> None:
    node = fleet([(300, 30)], [(500, 50)], [(100, 10)])
    assert minors(node, one(40, core=40, policy=Policy.SPREAD)) == {"main": [2]}


@pytest.mark.parametrize("policy", list(Policy))
def test_ties_go_to_the_lowest_minor(policy: Policy) -> None:
    assert minors(fleet([], [], []), one(40, policy=policy)) == {"main": [0]}
    same: list[Held] = [(300, 30)]
    assert minors(fleet(same, same, same), one(40, policy=policy)) == {"main": [0]}


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


def test_gpus_of_one_ask_are_distinct() -> None:
    assert minors(fleet([], [], []), one(10, count=3)) == {"main": [0, 1, 2]}
    assert minors(fleet([], []), one(10, count=3)) is Reason.TOO_FEW_GPUS
    assert minors(fleet([], [(1000, 1)], []), one(10, count=3)) is Reason.GPUS


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
    """If none suffices, any GPUs."""
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
def test_of_parts_within_the_scope_by_the_policy(policy: Policy, expected: int) -> None:
    held: list[list[Held]] = [[], [], [(500, 1)], [(500, 1)], [(500, 1)], []]
    request = one(20, scope=Scope.PCIE, policy=policy)
    assert minors(fleet(*held, of=TOPOLOGY), request) == {"main": [expected]}


def test_a_selector_matches_the_gpus_labels() -> None:
    of = [Gpu("GPU-0", 0, 1000, labels={"model": "T4"}), Gpu("GPU-1", 1, 1000)]
    for line, expected in (
        (Requirement("model", frozenset({"T4"})), {"main": [0]}),
        (Requirement("model", negated=True), {"main": [1]}),
        (Requirement("model", frozenset({"A100"})), Reason.NO_GPU_SELECTED),
    ):
        request = Request([main("main", 50)], selector=[line])
        assert minors(fleet(of=of), request) == expected
        both = Request([main("main", 50), main("other", 50)], selector=[line])
        if isinstance(expected, Reason):
            assert minors(fleet(of=of), both) is expected
        else:
            assert minors(fleet(of=of), both) == {**expected, "other": expected["main"]}


# --- several containers


def test_each_container_has_its_own_share() -> None:
    node = fleet([], [])
    request = several(main("a", 60, 50), main("b", 60, 20), main("c", 40, 50))
    found = place(node, request, node.row_of("n1"))
    assert found == Placement(
        "n1",
        (
            Share("a", "GPU-0", 0, 600, 50),
            Share("b", "GPU-1", 1, 600, 20),
            Share("c", "GPU-0", 0, 400, 50),
        ),
        (Peak("GPU-0", 0, 1000, 100, 100), Peak("GPU-1", 1, 600, 60, 20)),
    )


def test_a_pod_holds_the_larger_of_its_init_containers_and_its_main_ones() -> None:
    """Kubernetes' rule, per GPU: each init container beside the sidecars started before it."""
    request = several(
        init("first", 0, 90, 10),
        sidecar("beside", 1, 20, 5),
        init("second", 2, 70, 60),
        main("main", 30, 20),
    )
    node = fleet([])
    found = place(node, request, node.row_of("n1"))
    assert isinstance(found, Placement)
    assert found.peaks == (Peak("GPU-0", 0, 900, 90, 65),)
    assert minors(fleet([(101, 1)]), request) is Reason.MEMORY
    assert minors(fleet([(100, 36)]), request) is Reason.TOGETHER
    assert minors(fleet([(100, 35)]), request) == {
        "first": [0],
        "beside": [0],
        "second": [0],
        "main": [0],
    }


def test_an_init_container_may_have_the_gpu_that_the_main_one_has_after_it() -> None:
    assert minors(fleet([]), several(init("first", 0, 100, 100), main("main", 100, 100))) == {
        "first": [0],
        "main": [0],
    }
    assert (
        minors(fleet([]), several(sidecar("first", 0, 100, 100), main("main", 100, 100)))
        is Reason.TOGETHER
    )


def test_what_the_greediest_first_misses_the_search_finds() -> None:
    """GPUs of 60 and 50 percent; 40, 30, 20, 20 fit on them in only one way."""
    node = fleet([(400, 1)], [(500, 1)])
    asks = [main("a", 40), main("b", 30), main("c", 20), main("d", 20)]
    for policy in Policy:
        found = minors(node, several(*asks, policy=policy))
        assert found == {"a": [0], "b": [1], "c": [0], "d": [1]}
    assert minors(node, several(*asks, main("e", 1))) is Reason.TOGETHER


def test_shares_with_core_and_without_do_not_meet_in_one_pod() -> None:
    """The allocation annotation has one core limit per GPU, or none."""
    mixed = several(main("a", 10, 10), main("b", 10))
    assert minors(fleet([]), mixed) is Reason.TOGETHER
    assert minors(fleet([], []), mixed) == {"a": [0], "b": [1]}


def test_the_search_gives_up_and_says_so() -> None:
    """Each container needs more than half a GPU, over GPUs that all differ, with one container too
    many; the sums do not show it."""
    small = [Ask(f"c{n}", order=n, memory_bytes=505 + n) for n in range(16)]
    held: list[list[Held]] = [[(minor, 1)] for minor in range(1, 17)]
    node = fleet(*held, of=gpus(16))
    request = several(*small, Ask("last", order=17, memory_bytes=501))
    assert minors(node, request) is Reason.GIVEN_UP
    steps = Steps(10)
    assert place(node, request, node.row_of("n1"), steps=steps) is Reason.GIVEN_UP
    assert steps.taken == 10


def test_what_all_gpus_together_have_not_is_not_searched_for() -> None:
    node = fleet([(600, 10)], [(600, 10)])
    for asks in ([main("a", 30)] * 3, [main("a", 1, 60)] * 2 + [main("b", 1, 65)]):
        steps = Steps()
        assert place(node, several(*asks), node.row_of("n1"), steps=steps) is Reason.TOGETHER
        assert steps.taken == 0


def test_peaks_say_the_percent_that_was_asked_for_or_the_floor_of_the_bytes() -> None:
    node = fleet(of=[Gpu("GPU-0", 0, 997)])
    row = node.row_of("n1")
    by_ratio = place(node, several(main("a", 33), main("b", 33)), row)
    assert isinstance(by_ratio, Placement)
    assert by_ratio.peaks == (Peak("GPU-0", 0, 658, 66, None),)
    both = place(node, several(main("a", 33), Ask("b", memory_bytes=329)), row)
    assert isinstance(both, Placement)
    assert both.peaks == (Peak("GPU-0", 0, 658, 65, None),)
    after = place(node, several(init("a", 0, 33), Ask("b", memory_bytes=1)), row)
    assert isinstance(after, Placement)
    assert after.peaks == (Peak("GPU-0", 0, 329, 33, None),), "329 bytes are 32.998 percent"


@pytest.mark.parametrize("size", [29, 57, 58])
def test_a_ratio_from_bytes_is_exact_where_koordinators_float_is_not(size: int) -> None:
    node = fleet(of=[Gpu("GPU-0", 0, 100 * 2**20)])
    found = place(node, one(size=size * 2**20), node.row_of("n1"))
    assert isinstance(found, Placement)
    assert found.peaks[0].memory_percent == size
    assert int(float(size * 2**20) / float(100 * 2**20) * 100) == size - 1


def test_nodes_on_which_nothing_may_be_placed() -> None:
    node = fleet([])
    row = node.row_of("n1")
    node.set_node(row, Reason.AGENT_SILENT, False)
    assert place(node, one(1), row) is Reason.AGENT_SILENT
    node.set_node(row, Reason.FITS, False)
    wants = Request([main("main", 1)], isolation=True)
    assert place(node, wants, row) is Reason.NOT_ISOLATING
    assert place(node, one(1), 0) is Reason.NODE_UNKNOWN


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (one(100, count=2), Reason.PARTITIONED),
        (several(main("a", 100), main("b", 100)), Reason.PARTITIONED),
        (one(100), {"main": [0]}),
        (one(50, count=2), {"main": [0, 1]}),
        (several(init("a", 0, 100), main("b", 100)), {"a": [0], "b": [0]}),
    ],
)
def test_several_whole_gpus_are_refused_where_the_partition_table_is_to_be_honoured(
    request_: Request, expected: object
) -> None:
    node = fleet([], [])
    node.set_node(node.row_of("n1"), Reason.FITS, True, partitioned=True)
    assert minors(node, request_) == expected
