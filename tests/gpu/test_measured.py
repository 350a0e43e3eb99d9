"""Measurements on this machine's GPU: costs of driver calls, time slices, pairs of programs.

Their results are the figures in the table. Some pairs have goals. Ratios are of the same
program's work alone without the library. No setting of the GPU is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from subprocess import Popen
from typing import Final, NamedTuple

import pytest

from simgpu import load_output
from tests.gpu.conftest import VARIABLE, Gpu, machine, make_grant
from tests.gpu.programs import BEGIN, KERNEL
from tests.shim.clients import CUDA
from tests.support import GIB, ROOT, run

pytestmark = pytest.mark.sim

_BIN: Final = ROOT / "build/dev/bin"
_SECONDS: Final = 5
_STARTS_S: Final = 2
LOADS: Final = {
    "decode": "5 --to-us 20 --kinds 15 --step 300 --gap-us 35 --pause-us 600",
    "GEMM": "1400 --step 4",
    "small": "16 --step 50",
    "wait": "45 --step 1",
    "train": "5 --to-us 60 --kinds 150 --step 200 --gap-us 2",
}
"""Options of cuda-load, which resemble the programs of the same names."""
_PAIRS: Final = (
    ("decode", "decode"),
    ("decode", "GEMM"),
    ("small", "small"),
    ("wait", "GEMM"),
    ("train", "train"),
)
_SHARES: Final = ("30", "70")


def _within_2_points(figures: Sequence[tuple[float, float]]) -> bool:
    return all(
        abs(percent - int(share)) <= 2 for (percent, _), share in zip(figures, _SHARES, strict=True)
    )


_GOALS: Final[Mapping[Sequence[str], Callable[[Sequence[tuple[float, float]]], bool]]] = {
    ("small", "small"): _within_2_points,
    ("train", "train"): _within_2_points,
    ("decode", "decode"): lambda figures: all(percent >= 90 for percent, _ in figures),
    ("decode", "GEMM"): lambda figures: figures[0][1] <= 1.5,
}
"""Of work in percent of that alone, and the median step's time divided by that alone."""


class _Work(NamedTuple):
    percent: float
    p50_ms: float
    p99_ms: float


def _start(
    load: str, seconds: int, uuid: str, prefix: Sequence[str] = (), **variables: str
) -> Popen[str]:
    command = [*prefix, str(_BIN / "cuda-load"), str(seconds), *LOADS[load].split()]
    environment = {**machine(), "CUDA_VISIBLE_DEVICES": uuid, **variables}
    return Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def _end(process: Popen[str]) -> _Work:
    """Return the work without the first seconds, in which programs and arbiters start. The times of
    steps are those of all seconds."""
    with process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    ((_, p50_us, p99_us),) = load_output.steps(out)
    work = mean(percent for _, percent in load_output.seconds(out)[_STARTS_S - 1 :])
    return _Work(work, p50_us / 1e3, p99_us / 1e3)


@cache
def _alone(load: str, uuid: str) -> _Work:
    return _end(_start(load, _STARTS_S + 1, uuid))


@pytest.mark.parametrize("limited", [False, True], ids=["without limits", "30/70"])
@pytest.mark.parametrize("pair", _PAIRS, ids=" and ".join)
def test_gpu_pairs(gpu: Gpu, tmp_path: Path, pair: Sequence[str], limited: bool) -> None:
    uuid = gpu.facts.uuid
    alone = [_alone(load, uuid) for load in pair]
    limits = [
        sys.executable,
        "-m",
        "shim",
        "run",
        "--gpu",
        os.environ[VARIABLE],
        "--memory",
        "2GiB",
    ]
    started = [
        # Containers in one directory have one arbiter.
        _start(load, _SECONDS, uuid, [*limits, "--core", share, "--"], TMPDIR=str(tmp_path))
        if limited
        else _start(load, _SECONDS, uuid)
        for load, share in zip(pair, _SHARES, strict=True)
    ]
    got = [_end(process) for process in started]
    figures = []
    for load, one, work in zip(pair, alone, got, strict=True):
        figures.append((100 * work.percent / one.percent, work.p50_ms / one.p50_ms))
        gpu.note(
            f"FIGURE {load}: {figures[-1][0]:.1f} % of alone, step p50 {work.p50_ms:.2f} ms,"
            f" p99 {work.p99_ms:.2f} ms (alone {one.p50_ms:.2f}, {one.p99_ms:.2f})"
        )
    assert not limited or pair not in _GOALS or _GOALS[pair](figures), figures


def test_gpu_costs_of_driver_calls(gpu: Gpu, tmp_path: Path) -> None:
    """The best and the median of passes, without the library and under it without a share. The
    limit is far enough for the float of stream-ordered memory."""
    make_grant(tmp_path / "large", gpu.facts, 8 * GIB)
    bare = run(_BIN / "cuda-calls", env=gpu.host.environment(preload=False))
    ours = run(_BIN / "cuda-calls", env=gpu.host.environment(tmp_path / "large"))
    assert (bare.returncode, ours.returncode) == (0, 0), (bare.stderr, ours.stderr)
    for without, under in zip(bare.stdout.splitlines(), ours.stdout.splitlines(), strict=True):
        name, *ns = without.split()
        best, median = under.split()[1:]
        gpu.note(f"FIGURE {name}: {ns[0]} ({ns[1]}) ns, under the library {best} ({median}) ns")


_SLICES: Final = (
    CUDA
    + KERNEL
    + """
import subprocess, sys
beside = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
assert beside.stdout.readline() == "ready\\n"
events = [event() for _ in range(20_000)]
begun, count = time.monotonic(), 0
while time.monotonic() - begun < 2 and count < len(events):
    launch(0.1); mark(events[count]); count += 1
must(d.cuStreamSynchronize(stream))
away, run, runs = [], 0.0, []
for took in (ms(*each) for each in itertools.pairwise(events[:count])):
    if took > 0.13:  # a kernel of 0.1 ms was interrupted
        away.append(took - 0.1); runs.append(run); run = 0.0
    else:
        run += took
away.sort(); runs.sort()
def quantile(values, of):
    return values[int(len(values) * of)] if values else 0
print("FIGURE of %d slices: run p50 %.2f, p90 %.2f ms; away p50 %.2f, p90 %.2f, longest %.2f ms"
      % (len(away), quantile(runs, .5), quantile(runs, .9), quantile(away, .5),
         quantile(away, .9), away[-1] if away else 0))
print(*("FIGURE beside it " + line for line in beside.communicate()[0].splitlines()
        if line.startswith("steps")), sep="\\n")
"""
)


@pytest.mark.parametrize(
    "beside",
    ["100", "45 --step 1 --pause-us 500", "45 --step 1"],
    ids=["another that fills the GPU", "one that pings", "one that waits for each kernel"],
)
def test_gpu_time_slices_between_contexts(gpu: Gpu, beside: str) -> None:
    """A program that fills the GPU with kernels of 0.1 ms, and another beside it. Both have no
    limit."""
    command = (str(_BIN / "cuda-load"), "3", *beside.split())
    environment = gpu.host.environment(preload=False)
    done = run(sys.executable, "-c", _SLICES, *command, env=environment)
    assert done.returncode == 0, done.stderr
    gpu.note(done.stdout)


def test_gpu_compute_policy(gpu: Gpu) -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("this machine has no nvidia-smi")
    done = run(smi, "compute-policy", "-l")
    said = re.sub(r"\s+", " ", done.stdout or done.stderr).strip()
    gpu.note(f"FIGURE nvidia-smi compute-policy -l: status {done.returncode}: {said}")


def test_gpu_events_in_a_stream_of_a_green_context(gpu: Gpu) -> None:
    """The driver's answer if the event was made in the primary context, as the library's are."""
    gpu.python(
        CUDA
        + """
kind = d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
resource = must(d.cuDeviceGetDevResource(0, kind))
described = must(d.cuDevResourceGenerateDesc([resource], 1))
stream = must(d.cuGreenCtxStreamCreate(must(d.cuGreenCtxCreate(described, 0, 1)), 1, 0))
print("FIGURE cuEventRecord:", d.cuEventRecord(must(d.cuEventCreate(0)), stream)[0].name)
"""
    )


def test_gpu_a_fill_in_stream_order_reaches_the_limit(gpu: Gpu) -> None:
    gpu.python(
        BEGIN
        + """
blocks, code = [], OK
while code == OK:
    code, address = d.cuMemAllocAsync(64 * MIB, 0)
    if code == OK:
        must(d.cuMemsetD8Async(address, 1, 64 * MIB, 0))
        blocks.append(address)
must(d.cuStreamSynchronize(0))
print("FIGURE filled %d of %d MiB free, then error %d; charged %d, the GPU %d MiB"
      % (len(blocks) * 64, free_bytes // MIB, code, charged() // MIB, held() // MIB))
assert code == OOM
assert len(blocks) * 64 * MIB > free_bytes - 128 * MIB
"""
    )
