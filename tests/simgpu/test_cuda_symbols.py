"""The names in libcuda, and cuGetProcAddress's answers for them."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from tests.simgpu.host import Host
from tests.support import ROOT, run

pytestmark = pytest.mark.sim

LEGACY, PER_THREAD = 1, 2
FOUND = 0
SUCCESS, NOT_SUPPORTED = 0, 801
NEWEST = 13000
"""The newest version that is tested. Later drivers have further names."""


@pytest.fixture(scope="module")
def library(build_dir: Path) -> Path:
    return build_dir / "lib" / "simgpu" / "libcuda.so.1"


def listed(name: str) -> str:
    text = (ROOT / "simgpu/src/abi" / name).read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def ask(cuda: ctypes.CDLL, base: str, version: int, flags: int) -> tuple[int, int | None, int]:
    pointer, status = ctypes.c_void_p(0xBAD), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(
        base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    return code, pointer.value, status.value


def test_every_row_of_both_lists(library: Path) -> None:
    """Each listed symbol is exported, and found from its version on. No other is exported."""
    rows: set[tuple[str, str, int, int]] = set()
    for kind, symbol, base, since, rest in re.findall(
        r"^(\w+)\((\w+), (\w+), (\d+)(.*)\)$",
        listed("cuda.def") + listed("cuda_unsupported.def"),
        flags=re.MULTILINE,
    ):
        rows.add((symbol, base, int(since), LEGACY))
        if kind.startswith("PER_THREAD"):
            suffix, twin_since = re.findall(r"(_ptsz|_ptds), (\d+)$", rest)[0]
            rows.add((symbol + suffix, base, int(twin_since), PER_THREAD))
    assert len(rows) > 400
    rows = {row for row in rows if row[2] <= NEWEST}
    cuda = ctypes.CDLL(str(library))
    for symbol, base, since, flags in sorted(rows):
        address = ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value
        assert ask(cuda, base, since, flags) == (SUCCESS, address, FOUND), symbol
    exported = run("nm", "-D", "--defined-only", library, check=True).stdout
    assert {line.split()[2] for line in exported.splitlines()} == {symbol for symbol, *_ in rows}


def test_what_is_not_simulated_returns_not_supported(idle_host: Host) -> None:
    text = listed("cuda_unsupported.def")
    rows = re.findall(r"^(?:\w+_)?NAME\((\w+), \w+, (\d+)", text, flags=re.MULTILINE)
    names = [name for name, since in rows if int(since) <= NEWEST]
    assert len(names) > 100
    program = f"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
print([name for name in {names} if getattr(cuda, name)() != {NOT_SUPPORTED}])
"""
    assert idle_host.python(program) == "[]\n"


def test_loads_in_old_images(library: Path) -> None:
    """The library needs only the container's glibc, and this may be as old as 2012."""
    read = run("objdump", "-p", "-T", library, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", read)}
    assert max(versions) <= (2, 17)
    allowed = {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    assert set(re.findall(r"NEEDED\s+(\S+)", read)) <= allowed
    assert re.findall(r"SONAME\s+(\S+)", read) == ["libcuda.so.1"]
