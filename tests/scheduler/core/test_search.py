"""The search for GPUs of one node: the choices that it tries."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.search import _distinct


@given(states=st.lists(st.integers(0, 3), max_size=9), count=st.integers(1, 5))
def test_of_choices_with_equal_states_the_first_alone_is_tried(
    states: list[int], count: int
) -> None:
    """As among all combinations, in their order."""
    slots = list(range(len(states)))
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    for chosen in combinations(slots, count):
        first.setdefault(tuple(sorted(states[slot] for slot in chosen)), chosen)
    found = list(_distinct(slots, [(state,) for state in states], count))  # type: ignore[arg-type]
    assert [*map(str, found)] == [*map(str, first.values())]


def test_equal_gpus_have_one_choice() -> None:
    tried = _distinct(list(range(64)), [(0,)] * 64, 32)  # type: ignore[arg-type]
    assert len(list(tried)) == 1
