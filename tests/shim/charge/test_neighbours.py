"""Tenants on one GPU, for a minute: no neighbour changes another's charge.

Three setups run at once, each on a simulated GPU of 80 GiB of its own: beside a neighbour that
allocates and frees 1 GiB repeatedly, beside one that fills its half and stays, and two that start
together and do the same. A tenant loads code throughout, as a server does that receives new shapes.
`python -m shim run` limits and measures each of them.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract.overhead import CODE_BYTES, WINDOW
from gpuslice.gpu import answers
from tests.shim.clients import CUDA
from tests.shim.conftest import AS_ON_A_GPU, CONTEXT_BYTES, GIB, MIB, Host, gpu_table, simulated
from tests.support import ROOT

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
from shim import region
SECONDS, MODULE, CONTEXT = {_SECONDS}, {_MODULE_BYTES}, {CONTEXT_BYTES}
PTX = (b".version 8.0\\n.target sm_80\\n.address_size 64\\n"
       b"// simgpu: module_bytes=%d\\n.visible .entry f() {{ ret; }}\\n" % MODULE) + bytes(1)
def used():
    return region.status(Path(os.environ["GPUSLICE_DIR"]))[0].used_bytes
print(os.getpid(), flush=True)
sys.stdin.readline()
use(0)
begun = time.monotonic()
"""
_TENANT = f"""{_TOOLS}
# Weights and KV cache are allocated while the neighbour does what it does; then code comes.
refused, code = [], 0
fixed, held = int(sys.argv[1]), 0
def true_bytes():
    return held + CONTEXT + code
def wants(result, bytes=0):
    "Refused below the limit less the floor: a failure."
    if result[0] != OK and true_bytes() + bytes < {_LIMIT_BYTES - _FLOOR_BYTES}:
        refused.append((round(time.monotonic() - begun, 1), int(result[0]), true_bytes() // MIB))
    return result
while held < fixed:
    if wants(d.cuMemAlloc(256 * MIB), 256 * MIB)[0] == OK:
        held += 256 * MIB
    time.sleep(0.01)
kept = []
while time.monotonic() < begun + SECONDS:
    module = wants(d.cuModuleLoadData(PTX))[1]
    function = wants(d.cuModuleGetFunction(module, b"f"))[1]
    if wants(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))[0] == OK:
        code += MODULE
        kept.append(module)
    result, address = wants(d.cuMemAlloc(64 * MIB), 64 * MIB)
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
print(json.dumps({{"refused": refused, "loads": len(kept), "within_s": within,
                  "charged_beyond": used() - held - filled, "driver": CONTEXT + code}}), flush=True)
sys.stdin.readline()
"""
_CYCLING = f"""{_TOOLS}
while time.monotonic() < begun + SECONDS + 10:
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
for _ in range(36 * 4):
    must(d.cuMemAlloc(256 * MIB))
    time.sleep(0.05)
sys.stdin.readline()
"""
_WATCHER = """
import json, time
import pynvml
from gpuslice.gpu import processes
pynvml.nvmlInit()
while True:
    print(json.dumps(processes.query()), flush=True)
    time.sleep(0.2)
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


@dataclass(frozen=True)
class Outcome:
    """reports: of each tenant. over_bytes: a program's maximum beyond its limit, by the GPU."""

    reports: Sequence[Mapping[str, Any]]
    over_bytes: int
    samples: int


def _outcome(host: Host, setup: Setup) -> Outcome:
    with ExitStack() as stack:

        def started(*command: str) -> tuple[subprocess.Popen[str], Any]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *command],
                    cwd=ROOT,
                    env=host.environment(preload=False),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process, process.stdout

        run = ("-m", "shim", "run", "--memory", str(_LIMIT_BYTES), "--", sys.executable, "-c")
        programs = [_TENANT, setup.neighbour or _TENANT]
        running = [started(*run, program, str(setup.fixed_bytes)) for program in programs]
        pids = [int(out.readline()) for _, out in running]
        _, figures = started("-c", _WATCHER)
        for process, _ in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        tenants = [out for _, out in running[: 1 if setup.neighbour else 2]]
        over_bytes = samples = 0
        while len(select.select(tenants, [], [], 0)[0]) < len(tenants):
            held = answers.by_pid(json.loads(figures.readline())[_UUID]) or {}
            over_bytes = max(over_bytes, *((held.get(pid) or 0) - _LIMIT_BYTES for pid in pids))
            samples += 1
        reports = [json.loads(out.readline()) for out in tenants]
        for process, _ in running:
            process.communicate("\n")
        return Outcome(reports, over_bytes, samples)


@pytest.fixture(scope="module")
def outcomes(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Outcome]:
    gpus = gpu_table(0, _UUID, _GPU_BYTES)

    directories = [tmp_path_factory.mktemp("neighbours") for _ in _SETUPS]

    def outcome(setup: Setup, directory: Path) -> Outcome:
        with simulated(build_dir, library, directory, AS_ON_A_GPU, gpus) as host:
            return _outcome(host, setup)

    with ThreadPoolExecutor(len(_SETUPS)) as threads:
        found = threads.map(outcome, _SETUPS.values(), directories)
        return dict(zip(_SETUPS, found, strict=True))


@pytest.mark.parametrize("name", _SETUPS)
def test_no_neighbour_changes_a_tenants_charge(outcomes: Mapping[str, Outcome], name: str) -> None:
    """No call is refused below the limit less the floor. What is charged beyond allocations is the
    driver's. No program exceeds its limit by more than it loads until the next measurement."""
    outcome = outcomes[name]
    for report in outcome.reports:
        assert report["refused"] == [] and report["loads"] > _SECONDS, report
        assert report["within_s"] <= _SETTLED_S, report
        assert abs(report["charged_beyond"] - report["driver"]) <= _TOLERANCE_BYTES, report
    assert outcome.samples > _SECONDS
    assert outcome.over_bytes <= int(_SETTLED_S / _LOAD_EVERY_S) * _MODULE_BYTES
