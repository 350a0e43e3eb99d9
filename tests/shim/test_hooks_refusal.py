"""Grant or region cannot be used: no card, one line, and a program that lives."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from contract import names
from shim import region
from tests.shim.clients import NVML
from tests.shim.conftest import GIB, Grants, Host

pytestmark = pytest.mark.sim


def _torn(directory: Path) -> None:
    grant = directory / names.FILE_GRANT
    grant.chmod(0o600)
    grant.write_bytes(b"x" * grant.stat().st_size)


def _truncated(directory: Path) -> None:
    os.truncate(directory / names.FILE_REGION, 100)


def _of_another(directory: Path) -> None:
    other = directory / "other"
    other.mkdir()
    region.create(other, [entry.card for entry in region.status(directory)])
    (other / names.FILE_REGION).rename(directory / names.FILE_REGION)


_BREAKS: dict[str, Callable[[Path], None]] = {
    "no grant": lambda directory: (directory / names.FILE_GRANT).unlink(),
    "torn grant": _torn,
    "no region": lambda directory: (directory / names.FILE_REGION).unlink(),
    "truncated region": _truncated,
    "region of another grant": _of_another,
}


@pytest.mark.parametrize("damage", _BREAKS.values(), ids=_BREAKS.keys())
def test_without_a_usable_grant_there_is_no_card_and_one_line(
    host: Host, grants: Grants, damage: Callable[[Path], None]
) -> None:
    directory = grants.make(GIB)
    damage(directory)
    done = host.python(
        """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_uint64(), ctypes.c_size_t(512)
print([library.cuInit(0), library.cuInit(0), library.cuMemAlloc_v2(ctypes.byref(pointer), size)])
print("alive")
""",
        directory,
    )
    assert done.stdout == "[800, 800, 3]\nalive\n"
    assert re.fullmatch(r"gpuslice: no GPU for this process: [^;\n]+; [^;\n]+\n", done.stderr)
    assert str(directory) in done.stderr


@pytest.mark.parametrize("damage", ["no grant", "torn grant"])
def test_without_a_usable_grant_nvml_shows_no_memory(
    host: Host, grants: Grants, damage: str
) -> None:
    directory = grants.make(GIB)
    _BREAKS[damage](directory)
    done = host.python(
        NVML
        + """
for version in (None, pynvml.nvmlMemory_v2):
    try:
        pynvml.nvmlDeviceGetMemoryInfo(card(0), version=version)
    except pynvml.NVMLError_NoPermission:
        print("no permission")
print(pynvml.nvmlDeviceGetName(card(0)))
""",
        directory,
    )
    assert done.stdout == "no permission\nno permission\nNVIDIA SimGPU\n"
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpuslice: no GPU for this process: ")


def test_the_line_never_kills_or_blocks(host: Host, grants: Grants) -> None:
    """stderr closed, without a reader (SIGPIPE), and full."""
    directory = grants.make(GIB)
    _torn(directory)
    done = host.python(
        """
import ctypes, os, fcntl
library = ctypes.CDLL("libcuda.so.1")
def init(prepare):
    child = os.fork()
    if child == 0:
        import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        prepare()
        os._exit(0 if library.cuInit(0) == 800 else 1)
    assert os.waitpid(child, 0)[1] == 0, prepare
def no_reader():
    reader, writer = os.pipe(); os.dup2(writer, 2); os.close(reader)
def full():
    reader, writer = os.pipe(); os.dup2(writer, 2); os.set_blocking(2, False)
    try:
        while True: os.write(2, bytes(65536))
    except BlockingIOError: os.set_blocking(2, True)
init(lambda: os.close(2)); init(no_reader); init(full)
print("alive")
""",
        directory,
    )
    assert (done.stdout, done.stderr) == ("alive\n", "")
