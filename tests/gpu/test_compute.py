"""Compute limits on this machine's GPU: shares, and what compute_model.c assumes of a GPU.

The model assumes time slices of 2 ms, 1,024 pending launches, and an event that is done when the
work before it is done. If a GPU differs much, correct the model and run test_shares.py again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from subprocess import Popen

import pytest

from simgpu import load_output
from tests.gpu.conftest import VARIABLE, Gpu, machine
from tests.gpu.frameworks import FRAMEWORKS
from tests.gpu.programs import KERNEL
from tests.shim.clients import CUDA
from tests.support import ROOT

pytestmark = pytest.mark.sim

_LOAD = ROOT / "build/dev/bin/cuda-load"
_SECONDS = 10
Command = Sequence[str | Path]
Load = Callable[[int], Command]
TORCH = next(each for each in FRAMEWORKS if each.name == "torch")

_MULTIPLIES = """
import sys, time, torch
matrix = torch.ones(1024, 1024, device="cuda")
begun = second = time.monotonic()
count = 0
while (now := time.monotonic()) < begun + float(sys.argv[1]):
    for _ in range(50):
        product = matrix @ matrix
    torch.cuda.synchronize()
    count += 50
    if now >= second + 1:
        percent = count / (now - second) / 1000
        print(f"after {now - begun:.2f} s: {count} launches, {percent:.4f} % of the time")
        second, count = now, 0
"""

ASSUMED = {
    "a kernel takes the time that it was made for": """
took_ms = []
for _ in range(20):  # another program may use the GPU during some tries
    mark(first)
    for _ in range(10):
        launch(1)
    mark(second)
    must(d.cuStreamSynchronize(stream))
    took_ms.append(ms(first, second))
print("FIGURE 10 kernels of 1 ms: best %.2f ms, median %.2f ms"
      % (min(took_ms), statistics.median(took_ms)))
assert 9.5 <= min(took_ms) <= 12
""",
    "pending launches": """
most = 0
for _ in range(3):  # the machine may stall during a sample
    launch(500)
    begun = time.monotonic()
    for count in range(1, 100_000):
        called = time.monotonic()
        launch(0)
        if time.monotonic() - called > 0.02 or time.monotonic() - begun > 0.4:
            break
    most = max(most, count)
    must(d.cuStreamSynchronize(stream))
print("FIGURE", most, "launches until a call waits")
assert most >= 256
""",
    "events follow their work": """
late_us = []
for _ in range(20):
    mark(first)
    begun = time.monotonic()
    for _ in range(10):
        launch(1)
    mark(second)
    assert d.cuEventQuery(second)[0] == d.CUresult.CUDA_ERROR_NOT_READY
    while d.cuEventQuery(second)[0] == d.CUresult.CUDA_ERROR_NOT_READY:
        pass
    late_us.append((time.monotonic() - begun) * 1e6 - ms(first, second) * 1e3)
late_us.sort()
print("FIGURE 10 kernels of 1 ms: host time beyond the GPU's, median %.0f us, most %.0f us"
      % (statistics.median(late_us), late_us[-1]))
assert late_us[0] < 2000  # judge the best, as a busy machine delays others
""",
}


@pytest.mark.parametrize("what", ASSUMED)
def test_gpu_compute(gpu: Gpu, what: str) -> None:
    gpu.python(CUDA + KERNEL + ASSUMED[what])


def _load(seconds: int) -> Command:
    return (_LOAD, str(seconds), "200")


def _through_the_runtime(seconds: int) -> Command:
    """Use PyTorch, which calls libcudart and cuBLAS."""
    return (TORCH.python, "-c", _MULTIPLIES, str(seconds))


def _shares(
    gpu: Gpu, directory: Path, load: Load, percents: Sequence[int], *options: str
) -> Sequence[float]:
    """Return each program's work, in percent of the work that it does alone without a limit."""

    def start(command: Command, environment: Mapping[str, str]) -> Popen[str]:
        return Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

    alone = _work(start(load(5), gpu.host.environment(preload=False)))
    run = [sys.executable, "-m", "shim", "run", "--gpu", os.environ[VARIABLE], "--memory", "2GiB"]
    own = {**machine(), "TMPDIR": str(directory)}
    programs = load(_SECONDS + 2)
    started = [start([*run, "--core", str(p), *options, "--", *programs], own) for p in percents]
    got = [_work(process) / alone * 100 for process in started]
    gpu.note(f"FIGURE {' '.join(f'{share:.2f}' for share in got)}, loss {100 - sum(got):.2f}")
    return got


def _work(process: Popen[str]) -> float:
    """Return the work per second, without the first two seconds, in which arbiter and programs
    start."""
    with process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return mean(percent for _, percent in load_output.seconds(out)[2:])


@pytest.mark.parametrize("percent", [10, 30, 50, 70, 90])
def test_gpu_compute_shares_of_one(gpu: Gpu, tmp_path: Path, percent: int) -> None:
    (got,) = _shares(gpu, tmp_path, _load, (percent,), "--compute", "capped")
    assert abs(got - percent) <= 1.5


@pytest.mark.parametrize("requested", [(10, 90), (30, 70), (50, 50), (20, 30, 50)], ids=str)
@pytest.mark.parametrize("load", [_load, _through_the_runtime])
def test_gpu_compute_shares_of_several(
    gpu: Gpu, tmp_path: Path, load: Load, requested: Sequence[int]
) -> None:
    if load is _through_the_runtime and TORCH.version() is None:
        pytest.skip(TORCH.missing)
    got = _shares(gpu, tmp_path, load, requested)
    assert all(abs(a - b) <= 3 for a, b in zip(got, requested, strict=True))
    assert sum(got) >= 98
