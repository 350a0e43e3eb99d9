"""The counter is exact under races, and after an exit at any point of its protocol."""

from __future__ import annotations

import pytest

from gpuslice.contract import region_file
from tests.shim.region.core import LIMIT_BYTES, Box, patch

pytestmark = pytest.mark.sim

SCRIPT = (
    "attach",
    "reserve 0 1000",
    "refund 0 400",
    "share 0 250 77",
    "join 99",
    "leave",
    "leave",
    f"reserve 0 {LIMIT_BYTES}",
    "reserve 0 50",
)
"""Commands for the process under test. They pass every step if an exited process left a charge."""


def _stop_once(box: Box, step: str, passage: int) -> bool:
    """Stop the process under test at the passage. Return False if it does not pass that often."""
    box.write()
    with box.holding(500) as bystander, box.holding(3000) as victim, box.shell() as subject:
        assert bystander.ask("share 0 200 99") != "0"
        victim.kill()
        if not subject.stops_at(step, passage, *SCRIPT):
            return False
        # The stopped process keeps its memory, and all other processes continue.
        with box.holding(600000) as newcomer:
            for shell, held_bytes in ((bystander, 70000), (newcomer, 600000)):
                assert shell.ask(f"reserve 0 {held_bytes}") == "OK"
                assert shell.ask(f"refund 0 {held_bytes}") == "OK"
        assert box.used_without(subject) == 500
        assert box.used_without(bystander) == 0
    assert [slot.bytes for slot in box.slots() if slot.bytes] == []
    return True


def test_stopped_and_killed_after_any_step_it_blocks_no_process_and_leaves_nothing(
    box: Box,
) -> None:
    for step in box.run("steps"):
        passages = 0
        while passages < 12 and _stop_once(box, step, passages + 1):
            passages += 1
        assert passages > 0, f"the script never passes {step}"


def test_a_refund_that_overtakes_its_charge_takes_effect_after_it(box: Box) -> None:
    """A thread may refund memory before another thread has charged its growth."""
    with box.holding(7000), box.holding(100) as shell:
        shell.ask("refund 0 500")
        assert box.used() == 7000
        for reserved, used in ((300, 7000), (100, 7000), (30, 7030)):
            assert shell.ask(f"reserve 0 {reserved}") == "OK"
            assert box.used() == used


def test_a_refusal_changes_nothing_but_the_statistics(box: Box) -> None:
    most = (1 << 64) - 1
    with box.holding(LIMIT_BYTES) as shell:
        assert shell.ask("reserve 0 1") == "OVER_LIMIT"
        assert shell.ask(f"reserve 0 {most}") == "OVER_LIMIT"
        assert box.use() == region_file.GpuUse(LIMIT_BYTES, 2, most)


def test_gpus_are_counted_apart_and_unknown_ones_refused(box: Box) -> None:
    three = box.of_gpus(3)
    with three.shell() as shell:
        assert shell.ask(f"reserve 2 {LIMIT_BYTES}") == "OK"
        assert shell.ask("reserve 0 10") == "OK"
        assert shell.ask("reserve 3 10") == "OVER_LIMIT"
        assert shell.ask("reserve -1 10") == "OVER_LIMIT"
        assert [three.used(gpu) for gpu in range(3)] == [10, 0, LIMIT_BYTES]
    assert [three.used_seen_afresh(gpu) for gpu in range(3)] == [0, 0, 0]


def test_a_zeroed_counter_is_wrong_but_never_wraps(box: Box) -> None:
    """If a tenant zeroes its own counter, the use is wrong, but calls still work."""
    with box.holding(5000) as shell:
        patch(box.region, region_file.Geometry(1).gpu_offset(0), bytes(8))
        shell.ask("refund 0 5000")
        assert box.used() == 0
        assert shell.ask("reserve 0 10") == "OK"
        assert box.used() == 10
