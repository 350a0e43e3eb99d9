"""What is measured of the library's cost: which calls, and that it is the library's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces import cost, host
from tests.traces.conftest import Loaded

pytestmark = [pytest.mark.sim, pytest.mark.shipped]
Loader = Callable[[str], Loaded]


def entries(part: cost.Part) -> list[str]:
    calls = part.process.calls[part.first : part.last]
    return [call.text.split(" ", 1)[0] for call in calls]


def test_an_eager_step_is_one_without_a_burst(loaded: Loader) -> None:
    (process,) = loaded("d").recording.processes
    asked = entries(cost.shortest(process, "step"))
    assert len(asked) == 2519
    assert asked.count("cuLaunchKernel") == 142
    assert "cuMemAlloc_v2" not in asked, "so it can be repeated"


def test_a_burst_is_412_functions(loaded: Loader) -> None:
    (process,) = loaded("d").recording.processes
    part = cost.burst(process)
    asked = entries(part)
    assert len({call.thread for call in process.calls[part.first : part.last]}) == 1
    assert asked.count("cuKernelGetFunction") == asked.count("cuKernelSetAttribute") == 412
    assert len(asked) == 3 * 412


def test_a_graph_replay_is_five_calls(loaded: Loader) -> None:
    (process,) = loaded("e").recording.processes
    asked = entries(cost.shortest(process, "replay"))
    assert sorted(asked)[-1] == "cuGraphLaunch" and len(asked) == 5


def test_it_is_the_library_that_costs(loaded: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
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
