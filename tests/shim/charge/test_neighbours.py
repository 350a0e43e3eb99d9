"""Tenants on one GPU, for a minute: no neighbour changes another's charge.

Three setups run at once, each on its own simulated GPU of 80 GiB. In the first, the neighbour
allocates and frees 1 GiB repeatedly. In the second, the neighbour fills its half of the GPU. In the
third, two equal tenants start together. Tenants load code throughout, like a server with inputs of
new shapes. `python -m shim run` limits and measures each program.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES, WINDOW
from tests.shim.clients import CUDA
from tests.shim.conftest import AS_ON_A_GPU, CONTEXT_BYTES, GIB, MIB, Host, gpu_table, simulated
from tests.support import ROOT

pytestmark = [pytest.mark.sim, pytest.mark.timeout(600)]

_SECONDS = 60
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
# The tenant allocates weights and KV cache beside its neighbour, and then loads code.
refused, code = [], 0
fixed, held = int(sys.argv[1]), 0
def true_bytes():
    return held + CONTEXT + code
def wants(result, bytes=0):
    "Refused below the limit less the floor: a failure."
    if result[0] != OK and true_bytes() + bytes < {_LIMIT_BYTES - _FLOOR_BYTES}:
        refused.append((time.monotonic() - begun, int(result[0]), true_bytes() // MIB))
    return result
while held < fixed:
    if wants(d.cuMemAlloc(256 * MIB), 256 * MIB)[0] == OK:
        held += 256 * MIB
    time.sleep(0.01)
while time.monotonic() < begun + SECONDS:
    module = wants(d.cuModuleLoadData(PTX))[1]
    function = wants(d.cuModuleGetFunction(module, b"f"))[1]
    if wants(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))[0] == OK:
        code += MODULE
    result, address = wants(d.cuMemAlloc(64 * MIB), 64 * MIB)
    if result == OK:
        must(d.cuMemFree(address))
    time.sleep({_LOAD_EVERY_S})
last_load = time.monotonic()
while abs(used() - true_bytes()) > {_TOLERANCE_BYTES} and time.monotonic() < last_load + 30:
    time.sleep(0.05)
within_s = time.monotonic() - last_load
# Finally, allocate the rest of the limit.
filled = 0
while d.cuMemAlloc(64 * MIB)[0] == OK:
    filled += 64 * MIB
print(json.dumps({{"refused": refused, "loads": code // MODULE, "within_s": within_s,
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


_SETUPS: Final = {
    "a neighbour that cycles 1 GiB": (30 * GIB, _CYCLING),
    "a neighbour that fills 36 GiB": (36 * GIB, _FILLING),
    "two that start together, each 90 % of half the GPU": (36 * GIB, _TENANT),
}
"""For each setup, the bytes that the tenant keeps allocated, and the neighbour's program."""


class Outcome(NamedTuple):
    """reports: one for each tenant. over_bytes: the most that a program took beyond its limit."""

    reports: Sequence[Mapping[str, Any]]
    over_bytes: int
    samples: int


def _outcome(host: Host, fixed_bytes: int, neighbour: str) -> Outcome:
    with ExitStack() as stack:

        def started(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env={**host.environment(preload=False), names.ENV_BOOKINGS: f"{host.sim_dir}.book"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        run = ("-m", "shim", "run", "--memory", str(_LIMIT_BYTES), "--", sys.executable, "-c")
        running = [started(*run, each, str(fixed_bytes)) for each in (_TENANT, neighbour)]
        outputs: list[Any] = [process.stdout for process in running]
        pids = [output.readline().strip() for output in outputs]
        figures: Any = started("-c", _WATCHER).stdout
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        tenants = outputs if neighbour is _TENANT else outputs[:1]
        over_bytes = samples = 0
        while len(select.select(tenants, [], [], 0)[0]) < len(tenants):
            (held,) = json.loads(figures.readline()).values()
            over_bytes = max(over_bytes, *((held.get(pid) or 0) - _LIMIT_BYTES for pid in pids))
            samples += 1
        reports = [json.loads(output.readline()) for output in tenants]
        for process in running:
            process.communicate("\n")
        return Outcome(reports, over_bytes, samples)


@pytest.fixture(scope="module")
def outcomes(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Outcome]:
    gpus = gpu_table(0, "GPU-5e1f0a70-0000-4000-8000-0000000000aa", 80 * GIB)
    directories = [tmp_path_factory.mktemp("neighbours") for _ in _SETUPS]

    def outcome(setup: tuple[int, str], directory: Path) -> Outcome:
        with simulated(build_dir, library, directory, AS_ON_A_GPU, gpus) as host:
            return _outcome(host, *setup)

    with ThreadPoolExecutor(len(_SETUPS)) as threads:
        found = threads.map(outcome, _SETUPS.values(), directories)
        return dict(zip(_SETUPS, found, strict=True))


@pytest.mark.parametrize("name", _SETUPS)
def test_no_neighbour_changes_a_tenants_charge(outcomes: Mapping[str, Outcome], name: str) -> None:
    """No call is refused below the limit less the floor. The charge beyond allocations is that of
    the driver's memory. A program exceeds its limit at most by code loaded since a measurement."""
    outcome = outcomes[name]
    for report in outcome.reports:
        assert report["refused"] == [] and report["loads"] > _SECONDS, report
        assert report["within_s"] <= _SETTLED_S, report
        assert abs(report["charged_beyond"] - report["driver"]) <= _TOLERANCE_BYTES, report
    assert outcome.samples > _SECONDS
    assert outcome.over_bytes <= int(_SETTLED_S / _LOAD_EVERY_S) * _MODULE_BYTES
