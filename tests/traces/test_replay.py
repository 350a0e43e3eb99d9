"""Recordings of real programs, replayed through the library on a simulated GPU.

The limit is the recorded GPU's memory. Every call must have its recorded result, and the charge
must equal NVML's figures for the processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.support import MIB, run
from tests.traces.conftest import Gpu, Loaded
from traces.replay import Outcome
from traces.trace import LETTERS, files, words

pytestmark = [pytest.mark.sim, pytest.mark.shipped]
MOST_CHARGE_ERROR_BYTES: Final = 2 * MIB
POOL_CHUNK_BYTES: Final = 32 * MIB
"""The least memory that a pool allocates at a time, even for a smaller call."""
FLOAT_BYTES: Final = 2 * POOL_CHUNK_BYTES
"""A process that allocates from a pool is charged this much ahead (docs/adr/0063)."""
NOT_SIMULATED: Final = {"cuLogsRegisterCallback"}
Loader = Callable[[str], Loaded]


def is_refused_memory(of: Loaded) -> bool:
    """Return whether a call of the recorded program was refused for lack of memory."""
    calls = (call for process in of.recording.processes for call in process.calls)
    return any(call.text.split(" ", 2)[1] == "2" for call in calls)


def assert_replayed(outcome: Outcome, limit_bytes: int) -> None:
    assert outcome.differences == []
    assert outcome.checkpoints or outcome.refusal
    errors = {each.error_bytes for each in outcome.checkpoints}
    assert all(min(each, abs(each - FLOAT_BYTES)) <= MOST_CHARGE_ERROR_BYTES for each in errors)
    assert all(each.held_bytes <= limit_bytes for each in outcome.checkpoints)


@pytest.mark.parametrize("letter", LETTERS)
def test_every_call_has_its_recorded_result(
    loaded: Loader, gpu: Gpu, tmp_path: Path, letter: str
) -> None:
    it = loaded(letter)
    assert_replayed(it.replayed(tmp_path, gpu), it.recording.memory_bytes)
    assert set(it.recording.skipped) <= NOT_SIMULATED


@pytest.mark.parametrize("letter", LETTERS)
def test_with_a_smaller_limit_up_to_the_first_refusal(
    loaded: Loader, gpu: Gpu, tmp_path: Path, letter: str
) -> None:
    """Programs that used up the recorded GPU are refused at an earlier call here."""
    it = loaded(letter)
    limit_bytes = it.recording.memory_bytes * 3 // 4
    outcome = it.replayed(tmp_path, gpu, share=0.75)
    assert_replayed(outcome, limit_bytes)
    refusal = outcome.refusal
    assert (refusal is not None) == is_refused_memory(it)
    if refusal is not None:
        needed_bytes = max(int(words(refusal.call.text).before["b"]), POOL_CHUNK_BYTES)
        assert needed_bytes > refusal.free_bytes
        assert refusal.held_bytes <= limit_bytes


@pytest.mark.parametrize("pair", list(zip(LETTERS[::2], LETTERS[1::2], strict=True)), ids="".join)
def test_two_beside_each_other_on_one_gpu(
    loaded: Loader, gpu: Gpu, tmp_path: Path, pair: tuple[str, str]
) -> None:
    """Each replay has its own grant. The other replay's memory causes no refusal."""
    with ThreadPoolExecutor() as both:
        running = [both.submit(loaded(each).replayed, tmp_path / each, gpu) for each in pair]
    for letter, each in zip(pair, running, strict=True):
        assert_replayed(each.result(), loaded(letter).recording.memory_bytes)


def test_the_command_ends_with_a_line_of_json(build_dir: Path) -> None:
    replay = (sys.executable, "-m", "traces", "replay")
    done = run(*replay, *files("g"), "--memory", "6GiB", check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["calls"], said["differences"], said["limit_bytes"]) == (439, 0, 6 * 2**30)
    assert said["charge_error_bytes"] <= MOST_CHARGE_ERROR_BYTES
    assert said["refused_at_line"] > 0
    assert isinstance(said["added_ns_per_call"], float)
