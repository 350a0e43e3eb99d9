"""Measures in a separate process how many bytes of GPU memory an empty CUDA context takes.

The process creates the GPU's primary context and reads its own memory use from NVML. The memory is
freed when the process exits. If another process uses the GPU, no context is created, because the
other process may need the memory. Run as `python -m gpuslice.gpu.context_size UUID`; it prints one
number. The caller sets CUDA_VISIBLE_DEVICES to the UUID, and a deadline.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import pynvml

from gpuslice.ffi.cuda_ffi import ffi
from gpuslice.gpu import driver_root, nvml, processes
from gpuslice.gpu.answers import UnknownSizeError

_UUID_BYTES: Final = 16


def measure(uuid: str) -> int:
    """Return the bytes of this process's context on the GPU, from NVML's list of processes."""
    nvml.start()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    others = processes.memory(gpu)
    if others is None:
        raise UnknownSizeError("NVML does not list the GPU's processes")
    if others:
        raise UnknownSizeError("another process uses the GPU")
    if pynvml.nvmlDeviceGetComputeMode(gpu) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        raise UnknownSizeError(
            "compute mode EXCLUSIVE_PROCESS: a context here would fail a tenant's cuInit meanwhile"
        )
    with _context(uuid):
        rows = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        used_bytes = pynvml.nvmlDeviceGetMemoryInfo(gpu).used
    mine = [row.usedGpuMemory for row in rows if row.pid == os.getpid()]
    if not mine:
        raise UnknownSizeError(
            "NVML does not list this process: its number is not the host's (hostPID)"
        )
    if len(mine) > 1 or not isinstance(mine[0], int):
        raise UnknownSizeError("NVML does not report the memory of processes")
    if mine[0] > used_bytes:
        raise UnknownSizeError(
            f"NVML reports {mine[0]} bytes for a context, of {used_bytes} in use"
        )
    return mine[0]


@contextlib.contextmanager
def _context(uuid: str) -> Iterator[None]:
    """Hold the GPU's primary context. CUDA must see only this GPU."""
    try:
        cuda = driver_root.load(driver_root.CUDA)
    except (OSError, driver_root.NotFoundError) as error:
        raise UnknownSizeError(str(error)) from error
    device, context = ffi.new("int *"), ffi.new("void **")
    uuid_bytes = ffi.new("unsigned char[]", _UUID_BYTES)
    _check(cuda, "cuInit", 0)
    _check(cuda, "cuDeviceGet", device, 0)
    _check(cuda, "cuDeviceGetUuid", uuid_bytes, device[0])
    if bytes(uuid_bytes).hex() != uuid.removeprefix("GPU-").replace("-", ""):
        raise UnknownSizeError(f"CUDA shows GPU-{bytes(uuid_bytes).hex()} in its place")
    _check(cuda, "cuDevicePrimaryCtxRetain", context, device[0])
    try:
        yield
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device[0])


def _check(cuda: Any, name: str, *arguments: object) -> None:
    try:
        code = getattr(cuda, name)(*arguments)
    except AttributeError as error:  # the driver lacks the function
        raise UnknownSizeError(str(error)) from error
    if code != 0:
        raise UnknownSizeError(f"{name} returned {code}")


def main() -> int:
    """Return the exit status. On failure the last line on stderr states the cause."""
    try:
        size_bytes = measure(sys.argv[1])
    except (pynvml.NVMLError, driver_root.NotFoundError) as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    except UnknownSizeError as unknown:
        sys.stderr.write(f"{unknown}\n")
        return 1
    sys.stdout.write(f"{size_bytes}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
