"""The file libvgpu.so: its exports, its dependencies, and programs that load it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from shim import library as library_module
from tests.shim.conftest import GIB, Grants, Host
from tests.support import run

pytestmark = pytest.mark.sim

_SOURCES = Path(library_module.__file__).resolve().parent / "src"


def _dynamic_symbols(path: Path) -> list[tuple[str, str]]:
    """Return each dynamic symbol as its kind in nm's output, and its name with the version."""
    lines = run("nm", "-D", path, check=True).stdout.splitlines()
    return [(fields[-2], fields[-1]) for fields in map(str.split, lines)]


def test_row_35_exports_are_the_hooks_and_the_lookups(library: Path) -> None:
    hooks = (_SOURCES / "loader/hooks.def").read_text()
    row = r"^(?:CUDA_(?:([A-Z]+)_)?HOOK|NVML_HOOK|NVML_ROWS)\((\w+)"
    rows = re.findall(row, hooks, re.MULTILINE)
    listed = [symbol for _, symbol in rows]
    suffixes = dict.fromkeys(("STREAM", "CAPTURE", "LAUNCH", "ASYNC"), "_ptsz")
    suffixes |= dict.fromkeys(("COPY", "SET"), "_ptds")
    listed += [symbol + suffixes[kind] for kind, symbol in rows if kind in suffixes]
    exported = [name for kind, name in _dynamic_symbols(library) if kind not in "Uw"]
    assert sorted(exported) == sorted([*listed, "dlsym", "dlvsym", "dlopen", "dlmopen"])
    assert len(listed) == len(set(listed)) >= 13


@pytest.mark.shipped
def test_row_35_needs_libc_alone(library: Path) -> None:
    """The library uses only old functions of libc, and none that changes the process's state."""
    dynamic = run("readelf", "-dW", library, check=True).stdout
    assert re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic) == ["libc.so.6"]
    assert "(VERDEF)" not in dynamic
    # No code of the library runs at load time. The array's only entry is the compiler's own.
    assert re.findall(r"\(INIT_ARRAYSZ\)\s+(\d+)", dynamic) == ["8"]
    undefined = {name for kind, name in _dynamic_symbols(library) if kind in "Uw"}
    versions = re.findall(r"@GLIBC_(\d+)\.(\d+)", " ".join(undefined))
    assert versions and max((int(major), int(minor)) for major, minor in versions) <= (2, 17)
    plain = {name.split("@")[0] for name in undefined}
    assert {name for name in plain if name.startswith("dl")} == {"dl_iterate_phdr"}
    banned = ("pthread_", "sem_", "exit", "abort", "signal", "sigaction", "umask", "malloc")
    assert not {name for name in plain if name.startswith((*banned, "__tls_get_addr"))}


@pytest.mark.shipped
def test_links_and_runs_against_the_glibc_of_2012(library: Path, tmp_path: Path) -> None:
    """ziglang has the stubs of glibc 2.17, so a newer symbol would be an undefined reference."""
    source, program = tmp_path / "old.c", tmp_path / "old"
    source.write_text(
        "#include <stdio.h>\nint cuInit(unsigned int);\n"
        'int main(void) { printf("%d", cuInit(0)); return 0; }\n'
    )
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17"]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(tmp_path / "zig")}
    run(*compiler, source, library, "-o", program, env=environment, check=True)
    # The wrapper of cuInit finds no driver and returns code 500. The program continues.
    done = Host(library, library.parent).run([program], preload=False)
    assert (done.stdout, done.stderr) == ("500", "")


_STATE = """
import ctypes, os
def state():
    kept = ("Umask", "SigBlk", "SigIgn", "SigCgt", "Threads", "ShdPnd")
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(kept)], sorted(os.listdir("/proc/self/fd"))
print(state())
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
      cuda.cuCtxSetCurrent(context), cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20))
print(state())
"""


def test_row_35_the_process_is_left_as_it_was(host: Host, grants: Grants) -> None:
    """Umask, signals, threads and descriptors are the same as under the bare driver."""
    plain = host.python(_STATE, preload=False)
    ours = host.python(_STATE, grants.make(GIB, GIB))
    assert (ours.stdout, ours.stderr) == (plain.stdout, "")
    assert "0 0 0 0" in ours.stdout
