"""Measuring the library's cost: the right calls, and the library's part alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces.conftest import Loaded
from traces import cost, host

pytestmark = [pytest.mark.sim, pytest.mark.shipped]
Loader = Callable[[str], Loaded]


def test_the_measured_cost_is_that_of_the_library(
    loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = loaded("a")
    with_it = cost.added_ns_per_call(it.recording.processes, it.scripts)
    monkeypatch.setattr(host, "LIBRARY", Path("libc.so.6"))
    without = cost.added_ns_per_call(it.recording.processes, it.scripts)
    assert with_it > without


def test_calls_that_were_refused_memory_are_left_out(loaded: Loader) -> None:
    """The library would wait for seconds there: the recorded driver refuses without a reason."""
    it = loaded("a")
    (process,) = it.recording.processes
    done = subprocess.run(
        [host.program("trace-replay"), it.scripts / process.name, "--cost"],
        env=host.recorded(),
        capture_output=True,
        text=True,
        check=True,
    )
    measured = {int(line.split()[1]) for line in done.stdout.splitlines()}
    left_out = [
        process.calls[run.first].text
        for number, run in enumerate(process.script.runs)
        if run.steps and number not in measured
    ]
    assert len(left_out) == 4
    assert all(text.startswith("cuMemAlloc_v2 2 ") for text in left_out)
