"""A process stopped, and then killed, between any two steps of a driver call's accounting.

The steps within the counter, the slots and the shared slots are test_counter.py's; these are those
around them: reserved, called, written down, taken, freed, refunded, exported, opened. What the card
itself says is the judge.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from shim import region
from tests import sanitizers
from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.core import until
from tests.simgpu.peer import Peer
from tests.talking import TALKER, Talk, talking

pytestmark = pytest.mark.sim

STEPS = re.findall(
    r"STEP\((\w+)\)",
    (Path(__file__).resolve().parents[2] / "shim/src/hook_steps.def").read_text(),
)
PASSAGES = 2
NEXT_GOES_ON_S = 10.0
"""A second, and what a busy machine adds."""


@contextmanager
def _talker(host: Host, directory: Path, **extra: str) -> Iterator[Talk]:
    with talking(TALKER, {**host.environment(directory), **extra}) as talk:
        yield talk


def _script(handle: str) -> Sequence[str]:
    """Passes every step: the second allocation is the driver's to refuse."""
    return (
        f"alloc {100 * MIB}",
        f"alloc {8 * GIB}",
        "export 0",
        f"open {handle}",
        "close 1",
        "free 0",
    )


def _card_used(host: Host) -> int:
    assert host.sim_dir is not None
    peer = Peer(host.sim_dir / "cards" / "0.sock")
    try:
        return 4 * GIB - peer.free_bytes()
    finally:
        peer.close()


def _stop_once(host: Host, steps_library: Path, directory: Path, step: str, passage: int) -> bool:
    """False: the script does not pass the step that often."""
    with _talker(host, directory) as bystander:
        assert bystander.ask(f"alloc {50 * MIB}") == "0 0"
        code, handle = bystander.ask("export 0").split()
        assert code == "0"
        with _talker(host, directory, LD_PRELOAD=sanitizers.preload(steps_library)) as subject:
            assert subject.ask(f"stop {step} {passage}") == "0"
            if not any(subject.stops(line) for line in _script(handle)):
                return False
            began = time.monotonic()
            assert bystander.ask(f"alloc {20 * MIB}") == "0 1"
            assert bystander.ask("free 1") == "0"
            with _talker(host, directory) as newcomer:
                assert newcomer.ask(f"alloc {30 * MIB}") == "0 0"
                assert newcomer.ask("free 0") == "0"
            assert time.monotonic() - began < NEXT_GOES_ON_S
            assert region.status(directory)[0].use.used_bytes >= _card_used(host) - 2 * MIB
            subject.kill()
        with _talker(host, directory) as judge:
            until(
                lambda: (
                    judge.ask("info") != ""
                    and region.status(directory)[0].use.used_bytes == _card_used(host)
                ),
                f"{step} {passage}: {region.status(directory)[0].use.used_bytes} bytes charged, "
                f"{_card_used(host)} taken",
            )
            assert bystander.ask("free 0") == "0"
            assert region.status(directory)[0].use.used_bytes == _card_used(host)
    return True


@pytest.mark.parametrize("step", STEPS)
def test_row_21_killed_at_any_step_of_a_call(
    host: Host, grants: Grants, build_dir: Path, step: str
) -> None:
    directory = grants.make(64 * GIB)
    library = build_dir / "lib" / "tests" / "libvgpu-steps.so"
    assert _stop_once(host, library, directory, step, 1), f"the script never passes {step}"
    for passage in range(2, PASSAGES + 1):
        _stop_once(host, library, directory, step, passage)
