"""The columns: growth, reuse of rows, snapshots."""

from __future__ import annotations

import pytest

from scheduler.core.fit import fit
from scheduler.core.fleet import NO_ROW, Fleet, Gpu
from scheduler.core.reasons import UNRESOLVABLE, Reason
from scheduler.core.request import Ask, Request
from tests.scheduler.core.one_node import add

ANY = Request([Ask("main", memory_bytes=1)])


def test_rows_are_reused_and_forget() -> None:
    fleet = add(add(Fleet(), "a", [(10, 1)]), "b", [])
    first = fleet.row_of("a")
    assert fleet.add("a") == first
    fleet.remove("a")
    assert fleet.row_of("a") == NO_ROW
    assert fit(fleet, ANY, fleet.rows_of(["a", "b"]))[1].tolist() == [Reason.NODE_UNKNOWN, 0]
    assert fleet.add("c") == first
    assert fit(fleet, ANY, fleet.rows_of(["c"]))[1].tolist() == [Reason.NO_DEVICE]
    assert fleet.used_bytes[first].sum() == 0
    assert [fleet.names[row] for row in fleet.all_rows()] == ["b", "c"]


def test_the_row_of_no_node_never_fits() -> None:
    assert fit(Fleet(), ANY, Fleet().rows_of(["unknown"]))[1].tolist() == [Reason.NODE_UNKNOWN]
    assert fit(Fleet(), ANY, Fleet().rows_of([]))[0].tolist() == []


@pytest.mark.parametrize("total", [100, 101, 997, 24 * 2**30])
def test_the_largest_percent_that_is_left_is_exact(total: int) -> None:
    for used in (0, 1, total // 3, total // 2, total - 2, total - 1, total):
        fleet = add(Fleet(), "a", [(used, 1)], of=[Gpu("GPU-a", 0, total)])
        left = int(fleet.free_percent[fleet.row_of("a"), 0])
        fitting = [p for p in range(1, 101) if total * p // 100 <= total - used]
        assert left == max(fitting, default=0)


def test_values_that_make_no_request() -> None:
    with pytest.raises(ValueError, match="exactly one of memory_bytes and memory_percent"):
        Ask("main")
    with pytest.raises(ValueError, match="exactly one of memory_bytes and memory_percent"):
        Ask("main", memory_bytes=1, memory_percent=1)
    with pytest.raises(ValueError, match="at least one ask"):
        Request([])


def test_every_reason_has_a_text_of_its_own() -> None:
    assert len({reason.text for reason in Reason}) == len(Reason)
    assert Reason.FITS not in UNRESOLVABLE
    assert not any(character.isdigit() for reason in Reason for character in reason.text)
