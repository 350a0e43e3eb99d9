"""Tenants on one GPU, for a minute: no neighbour changes another's charge.

Three setups run at once, each on a simulated GPU of 80 GiB of its own: beside a neighbour that
allocates and frees 1 GiB repeatedly, beside one that fills its half and stays, and two that start
together and do the same. A tenant loads code throughout, as a server does that receives new shapes.
`python -m shim run` limits and measures each of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract.overhead import CODE_BYTES, WINDOW
from gpuslice.gpu import answers
from tests.shim.clients import CUDA
from tests.shim.conftest import AS_ON_A_GPU, CONTEXT_BYTES, GIB, MIB, Host, gpu_table, simulated

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]

_SECONDS = 60
_UUID = "GPU-5e1f0a70-0000-4000-8000-0000000000aa"
_GPU_BYTES = 80 * GIB
_LIMIT_BYTES = 40 * GIB
_MODULE_BYTES = 2 * MIB
_LOAD_EVERY_S = 0.05
_FLOOR_BYTES = CONTEXT_BYTES + CODE_BYTES
_TOLERANCE_BYTES = 64 * MIB
_SETTLED_S = float(WINDOW)

_TOOLS = f"""{CUDA}
import json, os, sys, time
from pathlib import Path
from typing import Any
from shim import region
SECONDS, MODULE, CONTEXT = {_SECONDS}, {_MODULE_BYTES}, {CONTEXT_BYTES}
PTX = (b".version 8.0\\n.target sm_80\\n.address_size 64\\n"
       b"// simgpu: module_bytes=%d\\n.visible .entry f() {{ ret; }}\\n" % MODULE) + bytes(1)
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].used_bytes
def fill(bytes):
    return [must(d.cuMemAlloc(256 * MIB)) for _ in range(bytes // (256 * MIB))]
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
_TENANT = f"""{_TOOLS}
# Weights and KV cache are allocated while the neighbour does what it does; then code comes.
use(0)
begun = time.monotonic()
refused, code = [], 0
fixed, held = int(sys.argv[1]), 0
def true_bytes():
    return held + CONTEXT + code
def wants(code, result, bytes=0):
    "Refused below the limit less the floor: a failure."
    if result[0] != OK and true_bytes() + bytes < {_LIMIT_BYTES - _FLOOR_BYTES}:
        refused.append((round(time.monotonic() - begun, 1), int(result[0]), true_bytes() // MIB))
    return result
while held < fixed:
    if wants(code, d.cuMemAlloc(256 * MIB), 256 * MIB)[0] == OK:
        held += 256 * MIB
    time.sleep(0.01)
kept = []
while time.monotonic() < begun + SECONDS:
    module = wants(code, d.cuModuleLoadData(PTX))[1]
    function = wants(code, d.cuModuleGetFunction(module, b"f"))[1]
    if wants(code, d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))[0] == OK:
        code += MODULE
        kept.append(module)
    result, address = wants(code, d.cuMemAlloc(64 * MIB), 64 * MIB)
    if result == OK:
        must(d.cuMemFree(address))
    time.sleep({_LOAD_EVERY_S})
last_load = time.monotonic()
within = None
while time.monotonic() < last_load + 30 and within is None:
    if abs(used() - true_bytes()) <= {_TOLERANCE_BYTES}:
        within = round(time.monotonic() - last_load, 2)
    time.sleep(0.05)
# The rest of the limit can be allocated.
filled = 0
while d.cuMemAlloc(64 * MIB)[0] == OK:
    filled += 64 * MIB
print(json.dumps({{"refused": refused, "loads": len(kept), "within_s": within, "true": true_bytes(),
                  "charged_beyond": used() - held - filled, "driver": CONTEXT + code,
                  "filled": filled, "held": held}}), flush=True)
sys.stdin.readline()
"""
_CYCLING = f"""{_TOOLS}
use(0)
end = time.monotonic() + SECONDS + 10
while time.monotonic() < end:
    held = []
    for _ in range(30):
        held.append(must(d.cuMemAlloc(GIB)))
        time.sleep(0.02)
    for each in held:
        must(d.cuMemFree(each))
        time.sleep(0.002)
sys.stdin.readline()
"""
_FILLING = f"""{_TOOLS}
use(0)
for _ in range(36 * 4):
    must(d.cuMemAlloc(256 * MIB))
    time.sleep(0.05)
sys.stdin.readline()
"""


@dataclass(frozen=True)
class Setup:
    """fixed_bytes: the tenant's constant memory. neighbour: the other's action; None: the same."""

    fixed_bytes: int
    neighbour: str | None


_SETUPS: Mapping[str, Setup] = {
    "a neighbour that cycles 1 GiB": Setup(30 * GIB, _CYCLING),
    "a neighbour that fills 36 GiB": Setup(36 * GIB, _FILLING),
    "two that start together, each 90 % of half the GPU": Setup(36 * GIB, None),
}


@dataclass
class Run:
    """One running setup. reports: of its tenants. over: how much one exceeded its limit."""

    processes: Sequence[subprocess.Popen[str]]
    host: Host
    reports: list[Mapping[str, Any]] = field(default_factory=list)
    over_bytes: int = 0
    samples: int = 0

    def reported(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return every tenant's report. None has crashed."""
        assert len(self.reports) == (1 if _SETUPS[name].neighbour else 2)
        return self.reports


def _started(host: Host, program: str, fixed_bytes: int) -> subprocess.Popen[str]:
    shim = [sys.executable, "-m", "shim", "run", "--memory", str(_LIMIT_BYTES), "--"]
    return subprocess.Popen(
        [*shim, sys.executable, "-c", program, str(fixed_bytes)],
        env={**host.environment(preload=False), "PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


_WATCH = """
import json, sys, time
import pynvml
from gpuslice.gpu import processes
pynvml.nvmlInit()
while True:
    print(json.dumps(processes.query()), flush=True)
    time.sleep(0.2)
"""


def _watch(run: Run, pids: Sequence[int], over: threading.Event) -> None:
    """A tenant's maximum beyond its limit, by the GPU's own figure."""
    command = [sys.executable, "-c", _WATCH]
    environment = {**run.host.environment(preload=False), "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        while not over.is_set():
            held = answers.by_pid(json.loads(watcher.stdout.readline())[_UUID]) or {}
            for pid in pids:
                run.over_bytes = max(run.over_bytes, (held.get(pid) or 0) - _LIMIT_BYTES)
            run.samples += 1
        watcher.kill()


def _go(run: Run, setup: Setup) -> None:
    pids = []
    for process in run.processes:
        assert process.stdout is not None
        pids.append(int(process.stdout.readline()))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(run, pids, over))
    watcher.start()
    for process in run.processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    tenants = run.processes if setup.neighbour is None else run.processes[:1]
    for process in tenants:
        assert process.stdout is not None
        run.reports.append(json.loads(process.stdout.readline()))
    over.set()
    watcher.join()
    for process in run.processes:
        process.communicate("\n")


@pytest.fixture(scope="module")
def runs(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Run]]:
    with ExitStack() as stack:
        runs, threads = {}, []
        for name, setup in _SETUPS.items():
            directory = tmp_path_factory.mktemp("neighbours")
            gpus = gpu_table(0, _UUID, _GPU_BYTES)
            host = stack.enter_context(simulated(build_dir, library, directory, AS_ON_A_GPU, gpus))
            programs = [_TENANT, setup.neighbour or _TENANT]
            started = [_started(host, program, setup.fixed_bytes) for program in programs]
            for process in started:
                stack.callback(process.kill)
            runs[name] = Run(started, host)
            threads.append(threading.Thread(target=_go, args=(runs[name], setup)))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _SECONDS + 120
        for thread in threads:
            thread.join(deadline - time.monotonic())
            assert not thread.is_alive()
        yield runs


@pytest.mark.parametrize("name", _SETUPS)
def test_no_program_is_refused_below_its_limit_less_the_floor(
    runs: Mapping[str, Run], name: str
) -> None:
    for report in runs[name].reported(name):
        assert report["refused"] == [], report
        assert report["loads"] > _SECONDS


@pytest.mark.parametrize("name", _SETUPS)
def test_what_is_charged_beyond_allocations_is_the_driver_s(
    runs: Mapping[str, Run], name: str
) -> None:
    for report in runs[name].reported(name):
        within, charged, driver = (report[key] for key in ("within_s", "charged_beyond", "driver"))
        assert within <= _SETTLED_S, report
        assert abs(charged - driver) <= _TOLERANCE_BYTES, report


@pytest.mark.parametrize("name", _SETUPS)
def test_no_tenant_is_over_its_limit_by_more_than_it_loaded_meanwhile(
    runs: Mapping[str, Run], name: str
) -> None:
    loaded_bytes = int(_SETTLED_S / _LOAD_EVERY_S) * _MODULE_BYTES
    assert runs[name].samples > _SECONDS
    assert runs[name].over_bytes <= loaded_bytes
