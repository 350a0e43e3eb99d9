"""The counter: exact under races, and after an exit at any point of its protocol."""

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
"""The subject's commands; with an exited process's charge to be found, it passes every step."""


def _stop_once(box: Box, step: str, passage: int) -> bool:
    """One subject stopped at that passage. False: it does not pass the step that often."""
    box.write()
    with box.shell() as bystander, box.shell() as victim, box.shell() as subject:
        assert bystander.ask("reserve 0 500") == "OK"
        assert bystander.ask("share 0 200 99") != "0"
        assert victim.ask("reserve 0 3000") == "OK"
        victim.kill_alone()
        stopped = subject.stops_at(step, passage, SCRIPT)
        if not stopped:
            return False
        # It is stopped, not killed, with all its memory: all other processes continue.
        assert bystander.ask("reserve 0 70000") == "OK"
        assert bystander.ask("refund 0 70000") == "OK"
        with box.shell() as newcomer:
            assert newcomer.ask("attach") == "OK"
            assert newcomer.ask("reserve 0 600000") == "OK"
            assert newcomer.ask("refund 0 600000") == "OK"
        subject.kill_alone()
        assert box.used_seen_afresh() == 500
        bystander.kill_alone()
    assert box.used_seen_afresh() == 0
    assert all(sum(slot.bytes) == 0 for slot in box.slots())
    return True


def test_stopped_and_killed_after_any_step_it_blocks_no_process_and_leaves_nothing(
    box: Box,
) -> None:
    for step in box.steps():
        passages = 0
        while passages < 12 and _stop_once(box, step, passages + 1):
            passages += 1
        assert passages > 0, f"the script never passes {step}"


def test_refunds_beyond_what_is_held_are_clamped_and_counted(box: Box) -> None:
    with box.shell() as neighbour, box.shell() as shell:
        neighbour.ask("reserve 0 7000")
        shell.ask("reserve 0 100")
        shell.ask("refund 0 500")
        assert box.use().used_bytes == 7000
        assert box.gpu_field("over_refund_count") == 1
        shell.ask("reserve 0 30")
        assert box.use().used_bytes == 7030


def test_a_refusal_changes_nothing_but_the_statistics(box: Box) -> None:
    with box.shell() as shell:
        assert shell.ask(f"reserve 0 {LIMIT_BYTES}") == "OK"
        assert shell.ask("reserve 0 1") == "OVER_LIMIT"
        assert shell.ask(f"reserve 0 {(1 << 64) - 1}") == "OVER_LIMIT"
        use = box.use()
    assert use.used_bytes == LIMIT_BYTES
    assert use.refused_count == 2
    assert use.last_refused_bytes == (1 << 64) - 1


def test_gpus_are_counted_apart_and_unknown_ones_refused(box: Box) -> None:
    three = Box(box.directory, box.program, gpu_count=3)
    three.write()
    with three.shell() as shell:
        assert shell.ask(f"reserve 2 {LIMIT_BYTES}") == "OK"
        assert shell.ask("reserve 0 10") == "OK"
        assert shell.ask("reserve 3 10") == "OVER_LIMIT"
        assert shell.ask("reserve -1 10") == "OVER_LIMIT"
        assert [three.use(gpu).used_bytes for gpu in range(3)] == [10, 0, LIMIT_BYTES]
    assert [three.used_seen_afresh(gpu) for gpu in range(3)] == [0, 0, 0]


def test_a_zeroed_counter_is_wrong_but_never_wraps(box: Box) -> None:
    """A tenant's change of its own counter is visible only from outside; no process gets stuck."""
    with box.shell() as shell:
        shell.ask("reserve 0 5000")
        patch(box.region, region_file.Geometry(1).gpu_offset(0), bytes(8))
        shell.ask("refund 0 5000")
        assert box.use().used_bytes == 0
        assert shell.ask("reserve 0 10") == "OK"
        assert box.use().used_bytes == 10
