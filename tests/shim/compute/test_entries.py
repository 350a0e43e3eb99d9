"""Every function of the driver that puts work on a stream waits for the container's window. The
exceptions are those in docs/compute.md."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpuslice.contract import names, region_file
from tests.shim.conftest import GIB, Grants, Host
from tests.shim.loader.every_symbol import exports
from tests.support import ROOT, table_below

pytestmark = pytest.mark.sim

STREAM = re.compile(r"_pt[sd][sz]$")
WORK = re.compile(r"cuLaunch|cuMem(cpy|set)")
"""Functions that submit work even if they have no variant for per-thread default streams."""
PROGRAM = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
region = os.open({region!r}, os.O_RDONLY)
for name in {names!r}:
    time.sleep(0.0005)
    before = os.pread(region, 8, {offset})
    for _ in range(70):  # the library checks one of 65 launches
        getattr(cuda, name)(*[ctypes.c_void_p(0)] * 12)
    if os.pread(region, 8, {offset}) == before:
        print(name)
"""


def exceptions() -> list[str]:
    rows = table_below((ROOT / "docs/compute.md").read_text(), "functions | reason")
    return [name for functions, _ in rows for name in re.findall(r"`(\w[\w*]+)`", functions)]


def taking_a_stream(driver: Path) -> list[str]:
    """Return variants for per-thread default streams, the functions with such variants, and other
    functions that submit work, except those of 2009 that have 32-bit addresses."""
    found = set(exports(driver).values())
    of_2009 = {name for name in found if f"{name}_v2" in found}
    twins = {name for name in found if STREAM.search(name)}
    bases = {STREAM.sub("", name) for name in twins}
    return sorted(twins | bases | ({name for name in found if WORK.match(name)} - of_2009))


def test_what_takes_a_stream_waits_or_is_documented(
    build_dir: Path, host: Host, grants: Grants
) -> None:
    newest = replace(host, driver_dir=build_dir / "lib/simgpu-14000")
    every = taking_a_stream(newest.driver_dir / "libcuda.so.1")
    excepted = {
        pattern: {name for name in every if fnmatchcase(name, pattern)} for pattern in exceptions()
    }
    assert len(excepted) >= 10 and all(excepted.values())
    waiting = sorted({*every}.difference(*excepted.values()))
    assert len(waiting) > 100
    grant = grants.make(GIB, GIB, core_percent=99)
    offset = region_file.Geometry(2).compute_offset(0)
    region = str(grant / names.FILE_REGION)
    program = PROGRAM.format(region=region, offset=offset, names=[*waiting, "cuCtxSynchronize"])
    assert newest.python(program, grant).stdout.split() == ["cuCtxSynchronize"]


def test_every_call_that_begins_a_capture_is_counted(build_dir: Path) -> None:
    every = exports(build_dir / "lib/simgpu-14000/libcuda.so.1").values()
    hooks = (ROOT / "shim/src/loader/hooks.def").read_text()
    counted = re.findall(r"^CUDA_CAPTURE_HOOK\((\w+)", hooks, re.MULTILINE)
    assert {STREAM.sub("", name) for name in every if "Begin" in name} == {*counted}
