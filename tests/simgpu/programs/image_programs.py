"""Programs that load code: `python -m tests.simgpu.programs.image_programs NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback. A compiler (nvrtc) makes the
machine code. The GPU of the host is of capability 8.0.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from cuda.bindings import driver, nvrtc

from tests.simgpu.programs.cuda_calls import R, begin, free_bytes, ok
from tests.support import MIB


def text(name: str, target: int, *lines: str) -> bytes:
    body = "\n".join(lines)
    head = f".version 8.0\n.target sm_{target}\n.address_size 64\n"
    return f"{head}{body}\n.visible .entry {name}() {{ ret; }}\n".encode()


def compiled(source: bytes, architecture: int) -> bytes:
    def must(answer: tuple[Any, ...]) -> Any:
        assert answer[0] is nvrtc.nvrtcResult.NVRTC_SUCCESS, answer
        return answer[1] if len(answer) == 2 else None

    made = must(nvrtc.nvrtcCreateProgram(source, b"source.cu", 0, [], []))
    must(nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_%d" % architecture]))
    code = bytes(must(nvrtc.nvrtcGetCUBINSize(made)))
    must(nvrtc.nvrtcGetCUBIN(made, code))
    return code


def load(image: bytes | int) -> Any:
    return ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))


def nothing_fits() -> None:
    """A library can be loaded and lists its kernels; a module cannot be loaded."""
    begin()
    image = compiled(b'extern "C" __global__ void older() {}', 75)
    assert driver.cuModuleLoadData(image)[0] is R.CUDA_ERROR_NO_BINARY_FOR_GPU
    library = load(image)
    (kernel,) = ok(driver.cuLibraryEnumerateKernels(1, library))
    assert ok(driver.cuKernelGetName(kernel)) == b"older"
    kernel = ok(driver.cuLibraryGetKernel(library, b"older"))
    assert driver.cuKernelGetFunction(kernel)[0] is R.CUDA_ERROR_NO_BINARY_FOR_GPU
    launched = driver.cuLaunchKernel(
        driver.CUfunction(int(kernel)), *(1, 1, 1, 1, 1, 1), 0, 0, 0, 0
    )
    assert launched[0] is R.CUDA_ERROR_NO_BINARY_FOR_GPU
    ok(driver.cuLibraryUnload(library))


SOURCE: Final = b"""
__device__ int numbers[4] = {1, 2, 3, 4};
__device__ double sums[1 << 20];
__constant__ float factors[8];
extern "C" __global__ void use(int i) { sums[i] = numbers[i] * factors[i]; }
"""


def _read(address: Any, size: int) -> bytes:
    room = bytes(size)
    ok(driver.cuMemcpyDtoH(room, address, size))
    return room


def variables() -> None:
    """Machine code's: with their initial values, in the memory that the code takes."""
    begin()
    before = free_bytes()
    source = SOURCE.replace(b"__device__ int", b'extern "C" __device__ int')
    source = source.replace(b"__device__ double", b'extern "C" __device__ double')
    source = source.replace(b"__constant__ float", b'extern "C" __constant__ float')
    module = ok(driver.cuModuleLoadData(compiled(source, 80)))
    numbers, size = ok(driver.cuModuleGetGlobal(module, b"numbers"))
    assert size == 16
    assert _read(numbers, 16) == b"".join(n.to_bytes(4, "little") for n in (1, 2, 3, 4))
    sums, size = ok(driver.cuModuleGetGlobal(module, b"sums"))
    assert size == 8 * MIB
    assert 8 * MIB <= before - free_bytes() <= 12 * MIB
    ok(driver.cuMemsetD8(sums, 7, size))
    assert _read(int(sums) + size - 8, 8) == bytes([7] * 8)
    factors, size = ok(driver.cuModuleGetGlobal(module, b"factors"))
    assert size == 32 and len({int(numbers), int(sums), int(factors)}) == 3
    ok(driver.cuMemcpyHtoD(factors, bytes(range(32)), 32))
    assert _read(factors, 32) == bytes(range(32))
    assert driver.cuModuleGetGlobal(module, b"absent")[0] is R.CUDA_ERROR_NOT_FOUND
    assert driver.cuMemFree(numbers)[0] is R.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuModuleUnload(module))
    assert free_bytes() == before
    assert driver.cuMemcpyDtoH(bytes(4), numbers, 4)[0] is R.CUDA_ERROR_INVALID_VALUE


def variables_of_text() -> None:
    begin()
    image = text(
        "use",
        80,
        ".visible .global .align 4 .u32 count = 7;",
        ".global .align 16 .b8 table[3][40] = {1, 2, 3};",
        ".visible .global .align 8 .v2 .f32 pair;",
        ".const .align 4 .b8 fixed[12];",
        ".visible .global .attribute(.managed) .align 8 .u64 shared;",
        ".extern .global .align 4 .u32 elsewhere;",
        ".global .texref picture;",
    )
    library = load(image)
    sizes = {"count": 4, "table": 120, "pair": 8, "fixed": 12, "shared": 8}
    places = {}
    for name, wanted in sizes.items():
        places[name], size = ok(driver.cuLibraryGetGlobal(library, name.encode()))
        assert size == wanted, name
        assert int(places[name]) % 4 == 0
        ok(driver.cuMemsetD8(places[name], len(places), size))
    assert int(places["table"]) % 16 == 0
    assert [_read(place, 1)[0] for place in places.values()] == [1, 2, 3, 4, 5]
    for absent in (b"elsewhere", b"picture", b"use"):
        assert driver.cuLibraryGetGlobal(library, absent)[0] is R.CUDA_ERROR_NOT_FOUND, absent
    other = ok(driver.cuCtxCreate(None, 0, 0))
    elsewhere, _ = ok(driver.cuLibraryGetGlobal(library, b"count"))
    assert int(elsewhere) != int(places["count"])
    ok(driver.cuCtxDestroy(other))
    ok(driver.cuLibraryUnload(library))


def options_without_values() -> None:
    """NVIDIA's libraries pass CU_LIBRARY_BINARY_IS_PRESERVED without a value."""
    begin()
    cuda = ctypes.CDLL("libcuda.so.1")
    out, option = ctypes.c_void_p(), ctypes.c_int(1)
    image = text("one", 80)
    load_data = cuda.cuLibraryLoadData
    pointer = ctypes.c_void_p
    load_data.argtypes = [pointer, ctypes.c_char_p, *[pointer] * 2, ctypes.c_uint, *[pointer] * 2]
    load_data.argtypes.append(ctypes.c_uint)
    assert not load_data(ctypes.byref(out), image, None, None, 0, ctypes.byref(option), None, 1)
    assert load_data(ctypes.byref(out), image, None, None, 1, None, None, 0) == 1


def eager_loading() -> None:
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    nothing_fits()


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        nothing_fits,
        variables,
        variables_of_text,
        options_without_values,
    )
}

if __name__ == "__main__":
    {**PROGRAMS, "eager_loading": eager_loading}[sys.argv[1]]()
