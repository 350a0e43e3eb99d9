"""Recordings of real programs, replayed through the library on a simulated GPU.

Every call must have its recorded result, with the memory of the recorded GPU as the limit, and the
charge must equal NVML's figures for the processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.support import MIB, ROOT
from tests.traces.conftest import Loaded
from traces import host
from traces.replay import Outcome, Refusal, Replay
from traces.trace import LETTERS, files, words
from traces.watch import Watch

pytestmark = [pytest.mark.sim, pytest.mark.shipped]
MOST_CHARGE_ERROR_BYTES: Final = 2 * MIB
POOL_CHUNK_BYTES: Final = 32 * MIB
"""The minimum that a pool takes, and the maximum of a refused call beyond its size."""
NOT_SIMULATED: Final = {"cuLogsRegisterCallback"}
Loader = Callable[[str], Loaded]


def replayed(of: Loaded, directory: Path, gpu: Mapping[str, str], *, share: float = 1.0) -> Outcome:
    limit_bytes = int(of.recording.memory_bytes * share)
    directory.mkdir(exist_ok=True)
    with Watch(host.UUID, gpu) as watch:
        return Replay(of.recording, of.scripts, directory, limit_bytes, watch).run(gpu)


def is_refused_memory(of: Loaded) -> bool:
    """True if the recorded program took all of its GPU."""
    calls = (call for process in of.recording.processes for call in process.calls)
    return any(call.text.split(" ", 2)[1] == "2" for call in calls)


def assert_charged(outcome: Outcome, limit_bytes: int) -> None:
    assert outcome.checkpoints or outcome.refusal
    assert outcome.charge_error_bytes <= MOST_CHARGE_ERROR_BYTES
    assert all(each.held_bytes <= limit_bytes for each in outcome.checkpoints)


@pytest.mark.parametrize("letter", LETTERS)
def test_every_call_has_its_recorded_result(
    loaded: Loader, gpu: Mapping[str, str], tmp_path: Path, letter: str
) -> None:
    it = loaded(letter)
    outcome = replayed(it, tmp_path, gpu)
    assert outcome.differences == []
    assert_charged(outcome, it.recording.memory_bytes)
    assert set(it.recording.skipped) <= NOT_SIMULATED


@pytest.mark.parametrize("letter", LETTERS)
def test_with_a_smaller_limit_up_to_the_first_refusal(
    loaded: Loader, gpu: Mapping[str, str], tmp_path: Path, letter: str
) -> None:
    """Those that took all of the recorded GPU are refused earlier, at a call that does not fit."""
    it = loaded(letter)
    outcome = replayed(it, tmp_path, gpu, share=0.75)
    assert outcome.differences == []
    assert_charged(outcome, it.recording.memory_bytes * 3 // 4)
    assert (outcome.refusal is not None) == is_refused_memory(it)
    if outcome.refusal is not None:
        assert needed_bytes(outcome.refusal) > outcome.refusal.free_bytes
        assert outcome.refusal.held_bytes <= it.recording.memory_bytes * 3 // 4


def needed_bytes(refusal: Refusal) -> int:
    return max(int(words(refusal.call.text).before["b"]), POOL_CHUNK_BYTES)


@pytest.mark.parametrize("pair", list(zip(LETTERS[::2], LETTERS[1::2], strict=True)), ids="".join)
def test_two_beside_each_other_on_one_gpu(
    loaded: Loader, gpu: Mapping[str, str], tmp_path: Path, pair: tuple[str, str]
) -> None:
    """Each has a grant of its own, and neither is refused because of the other's memory."""
    with ThreadPoolExecutor() as both:
        running = [both.submit(replayed, loaded(letter), tmp_path / letter, gpu) for letter in pair]
    for letter, each in zip(pair, running, strict=True):
        assert each.result().differences == [], letter
        assert_charged(each.result(), loaded(letter).recording.memory_bytes)


def test_the_command_ends_with_a_line_of_json(build_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "traces", "replay", *files("g"), "--memory", "6GiB"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["calls"] == 439
    assert said["differences"] == 0
    assert said["charge_error_bytes"] <= MOST_CHARGE_ERROR_BYTES
    assert said["limit_bytes"] == 6 * 2**30
    assert said["refused_at_line"] > 0
    assert isinstance(said["added_ns_per_call"], float)
