"""With an unusable grant or region, a program gets no GPU and one error line, and continues."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests import sanitizers
from tests.shim.clients import NVML
from tests.shim.conftest import GIB, Grants, Host

pytestmark = pytest.mark.sim


@pytest.fixture
def torn(grants: Grants) -> Path:
    """The directory of a grant whose file has invalid content."""
    directory = grants.make(GIB)
    grant = directory / names.FILE_GRANT
    grant.write_bytes(b"x" * grant.stat().st_size)
    return directory


def test_without_a_usable_grant_nvml_shows_no_memory(host: Host, torn: Path) -> None:
    done = host.python(
        f"""{NVML}
for version in (None, pynvml.nvmlMemory_v2):
    try:
        pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=version)
    except pynvml.NVMLError_NoPermission:
        print("no permission")
print(pynvml.nvmlDeviceGetName(gpu(0)))
""",
        torn,
    )
    assert done.stdout == "no permission\nno permission\nNVIDIA SimGPU\n"
    assert re.fullmatch("gpuslice: no GPU for this process: .*\n", done.stderr)


def test_the_error_line_neither_ends_nor_blocks_the_program(host: Host, torn: Path) -> None:
    """stderr is closed, is a pipe without a reader, or is a full pipe."""
    done = host.python(
        """
import ctypes, os, signal
library = ctypes.CDLL("libcuda.so.1")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
def closed():
    os.close(2)
def no_reader():
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(reader)
def full():
    os.dup2(os.pipe()[1], 2)
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(65536))
    except BlockingIOError:
        os.set_blocking(2, True)
for prepare in (closed, no_reader, full):
    child = os.fork()
    if child == 0:
        prepare()
        os._exit(library.cuInit(0) != 800)
    assert os.waitpid(child, 0)[1] == 0, prepare
print("alive")
""",
        torn,
    )
    assert (done.stdout, done.stderr) == ("alive\n", "")


# $1 is the grant's directory, and $2 another directory.
_FILL_THE_DISK = """
mount -t tmpfs -o size=256k none "$2" && head -c 128 "$1/region" > "$2/region" &&
truncate -s $(stat -c %s "$1/region") "$2/region" &&
(dd if=/dev/zero of="$2/full" 2>/dev/null || true) && mount --bind "$2/region" "$1/region"
"""
_UNUSABLE = {
    "no grant": ('rm "$1/grant"', "cannot be read"),
    "read-only": ('mount --bind -o ro "$1/region" "$1/region"', "cannot be written"),
    "full disk": (_FILL_THE_DISK.strip(), "No space left on device"),
}
_TRY = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
pointer, size = ctypes.c_uint64(), ctypes.c_size_t(512)
print([library.cuInit(0), library.cuInit(0), library.cuMemAlloc_v2(ctypes.byref(pointer), size)])
print("alive")
"""


@pytest.mark.parametrize(("damage", "reason"), _UNUSABLE.values(), ids=_UNUSABLE)
def test_row_25_a_region_that_cannot_be_used_is_no_gpu_and_the_program_runs(
    host: Host, grants: Grants, tmp_path: Path, damage: str, reason: str
) -> None:
    mounts = "mount" in damage
    if mounts and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("needs root, to mount")
    directory, other = grants.make(GIB), tmp_path / "other"
    other.mkdir()
    script = ["sh", "-c", f'{damage} && shift 2 && exec "$@"', "sh", str(directory), str(other)]
    program = ["env", f"LD_PRELOAD={sanitizers.preload(host.library)}", sys.executable, "-c", _TRY]
    unshare = ["unshare", "--mount"] if mounts else []
    done = host.run([*unshare, *script, *program], directory, preload=False)
    assert done.stdout == "[800, 800, 3]\nalive\n"
    assert re.fullmatch(r"gpuslice: no GPU for this process: [^;\n]+; [^;\n]+\n", done.stderr)
    assert reason in done.stderr and str(directory) in done.stderr


def test_row_25_a_region_truncated_while_in_use_ends_its_process_before_it_gets_more(
    host: Host, grants: Grants
) -> None:
    """Only the container's own processes can truncate the region. Afterwards, its processes end by
    SIGBUS at their next allocation. A process that starts later gets no GPU."""
    directory = grants.make(GIB)
    program = f"""
import ctypes, os
library = ctypes.CDLL("libcuda.so.1")
context, pointer, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(1 << 21)
library.cuInit(0)
library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
library.cuCtxSetCurrent(context)
print(library.cuMemAlloc_v2(ctypes.byref(pointer), size), flush=True)
os.truncate("{directory / names.FILE_REGION}", 0)
library.cuMemAlloc_v2(ctypes.byref(pointer), size)
print("got more", flush=True)
"""
    done = host.run([sys.executable, "-c", program], directory, status=-signal.SIGBUS)
    assert done.stdout == "0\n"
    assert host.python(_TRY, directory).stdout == "[800, 800, 3]\nalive\n"
