"""The names in libcuda, and cuGetProcAddress's answers for them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from tests.simgpu.host import Host
from tests.support import ROOT

pytestmark = pytest.mark.sim

LEGACY, PER_THREAD = 1, 2
FOUND = 0
SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 801


@pytest.fixture(scope="module")
def library(build_dir: Path) -> Path:
    return build_dir / "lib" / "simgpu" / "libcuda.so.1"


@pytest.fixture(scope="module")
def cuda(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))


def exported(library: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], text=True, capture_output=True, check=True
    )
    return {line.split()[2] for line in listed.stdout.splitlines()}


def address(cuda: ctypes.CDLL, symbol: str) -> int | None:
    return ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value


def ask(cuda: ctypes.CDLL, base: str, version: int, flags: int) -> tuple[int, int | None, int]:
    pointer, status = ctypes.c_void_p(0xBAD), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(
        base.encode(),
        ctypes.byref(pointer),
        version,
        ctypes.c_uint64(flags),
        ctypes.byref(status),
    )
    return code, pointer.value, status.value


def test_every_row_of_both_lists(cuda: ctypes.CDLL, library: Path) -> None:
    """Every row's symbol is exported and found at its version; nothing else is exported."""
    rows: set[tuple[str, str, int, int]] = set()
    for name in ("cuda.def", "cuda_unsupported.def"):
        text = (ROOT / "simgpu/src/abi" / name).read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for kind, symbol, base, since, rest in re.findall(
            r"^(\w+)\((\w+), (\w+), (\d+)(.*)\)$", text, flags=re.MULTILINE
        ):
            rows.add((symbol, base, int(since), LEGACY))
            if kind.startswith("PER_THREAD"):
                suffix, twin_since = re.findall(r"(_ptsz|_ptds), (\d+)$", rest)[0]
                rows.add((symbol + suffix, base, int(twin_since), PER_THREAD))
    assert len(rows) > 400
    rows = {row for row in rows if row[2] <= 13000}  # what later drivers have
    for symbol, base, since, flags in sorted(rows):
        assert ask(cuda, base, since, flags) == (SUCCESS, address(cuda, symbol), FOUND), symbol
    assert exported(library) == {symbol for symbol, *_ in rows}


def test_what_is_not_simulated_returns_not_supported(idle_host: Host) -> None:
    text = (ROOT / "simgpu/src/abi/cuda_unsupported.def").read_text()
    rows = re.findall(r"^(?:\w+_)?NAME\((\w+), \w+, (\d+)", text, flags=re.MULTILINE)
    names = [name for name, since in rows if int(since) <= 13000]  # later drivers have the others
    assert len(names) > 100
    program = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
print([name for name in {names} if getattr(cuda, name)() != {NOT_SUPPORTED}])
"""
    assert idle_host.python(program) == "[]\n"


def test_loads_in_old_images(library: Path) -> None:
    """glibc of 2012 and no other library; a container has its own."""
    read = subprocess.run(
        ["objdump", "-p", "-T", library], text=True, capture_output=True, check=True
    ).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", read)}
    assert max(versions) <= (2, 17)
    assert set(re.findall(r"NEEDED\s+(\S+)", read)) <= {
        "libc.so.6",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
    }
    assert re.findall(r"SONAME\s+(\S+)", read) == ["libcuda.so.1"]
