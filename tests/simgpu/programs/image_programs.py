"""Programs that load code in every form: `python -m tests.simgpu.programs.image_programs NAME`.

As in cuda_programs.py, each ends with status 0 or with a traceback. A compiler (nvrtc) makes the
machine code. The GPU of the host is of capability 8.0.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cuda.bindings import driver, nvrtc

from tests.simgpu.programs.cuda_programs import MIB, R, begin, free_bytes, ok
from tests.simgpu.programs.fatbins import ELF, PTX, Wrapper, entry, fatbin


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


def machine(name: str, architecture: int) -> bytes:
    return compiled(b'extern "C" __global__ void %s() {}' % name.encode(), architecture)


def load(image: bytes | int) -> Any:
    return ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))


def only_kernel(image: bytes | int) -> str:
    library = load(image)
    (kernel,) = ok(driver.cuLibraryEnumerateKernels(1, library))
    name = str(ok(driver.cuKernelGetName(kernel)), "ascii")
    ok(driver.cuLibraryUnload(library))
    return name


def choice() -> None:
    """The newest machine code of the GPU's generation that is not newer; else the newest PTX."""
    begin()
    entries = {
        "text50": entry(PTX, 50, text("text50", 50)),
        "text80": entry(PTX, 80, text("text80", 80)),
        "text90": entry(PTX, 90, text("text90", 90)),
        "code75": entry(ELF, 75, machine("code75", 75)),
        "code80": entry(ELF, 80, machine("code80", 80), head_bytes=112),
        "code86": entry(ELF, 86, machine("code86", 86)),
    }
    for given, wanted in (
        (("code75", "text50", "code80", "text80", "code86"), "code80"),
        (("code75", "text50", "text80", "text90", "code86"), "text80"),
        (("code75", "text50"), "text50"),
    ):
        image = fatbin([entries[name] for name in given])
        assert only_kernel(image) == wanted
        pieces = [fatbin([entries[name]]) for name in given]
        for wrapper in (Wrapper(1, image), Wrapper(2, *pieces)):
            assert only_kernel(wrapper.address) == wanted


def packing() -> None:
    begin()
    code, ptx = machine("code", 80), text("text", 80)
    for kind, plain, name in ((ELF, code, "code"), (PTX, ptx, "text")):
        for packed in ("", "lz4", "zstd"):
            assert only_kernel(fatbin([entry(kind, 80, plain, packed)])) == name, (kind, packed)
    for packed in ("lz4", "zstd"):
        whole = fatbin([entry(ELF, 80, code, packed)])
        spoilt = whole[:100] + bytes(16) + whole[116:]
        answer = driver.cuModuleLoadData(spoilt)
        assert answer[0] is R.CUDA_ERROR_INVALID_IMAGE, answer
    assert driver.cuModuleLoadData(fatbin([]))[0] is R.CUDA_ERROR_INVALID_IMAGE


def nothing_fits() -> None:
    """A library can be loaded and lists its kernels; a module cannot be loaded."""
    begin()
    image = fatbin([entry(ELF, 75, machine("older", 75)), entry(ELF, 90, machine("newer", 90))])
    assert driver.cuModuleLoadData(image)[0] is R.CUDA_ERROR_NO_BINARY_FOR_GPU
    library = load(image)
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
    """Of machine code: with its initial values, in the memory that the code takes."""
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
    managed, size = ok(driver.cuLibraryGetManaged(library, b"shared"))
    assert (int(managed), size) == (int(places["shared"]), 8)
    for absent in (b"elsewhere", b"picture", b"use"):
        assert driver.cuLibraryGetGlobal(library, absent)[0] is R.CUDA_ERROR_NOT_FOUND, absent
    assert driver.cuLibraryGetManaged(library, b"count")[0] is R.CUDA_ERROR_NOT_FOUND
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


_SEEDS: Final = 900
_WORDS: Final = (bytes(4), b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\1\0", b"\xff" * 8)


def write_images(directory: str) -> None:
    """Images of every form, for spoilt_images."""
    code = compiled(SOURCE.replace(b"__device__", b'extern "C" __device__'), 80)
    lines = (".global .align 4 .u32 count = 7;", ".global .align 16 .b8 table[3][40] = {1};")
    ptx = text("use", 80, *lines)
    images = [code, ptx]
    for packed in ("", "lz4", "zstd"):
        parts = (entry(ELF, 75, code, packed), entry(ELF, 80, code, packed), entry(PTX, 80, ptx))
        images.append(fatbin(parts))
    for index, image in enumerate(images):
        Path(directory, f"{index}.image").write_bytes(image)


def spoilt_images(directory: str) -> None:
    """Reads of a file stay inside it, whatever its content; a sanitizer checks that."""
    begin()
    images = [path.read_bytes() for path in sorted(Path(directory).glob("*.image"))]
    file = Path(directory, "spoilt")
    loaded = 0
    for seed in range(_SEEDS):
        random_ = random.Random(seed)
        image = bytearray(random_.choice(images))
        for _ in range(random_.randint(1, 6)):
            at = random_.randrange(len(image))
            match random_.randrange(4):
                case 0:
                    image[at] = random_.randrange(256)
                case 1:
                    word = random_.choice(_WORDS)
                    image[at : at + len(word)] = word
                case 2:
                    image[at:at] = bytes(random_.randrange(9))
                case 3:
                    del image[at + 1 :]
        file.write_bytes(image)
        code, module = driver.cuModuleLoad(str(file).encode())
        if code is R.CUDA_SUCCESS:
            loaded += 1
            driver.cuModuleGetGlobal(module, b"numbers")
            driver.cuModuleGetGlobal(module, b"table")
            ok(driver.cuModuleUnload(module))
    assert 0 < loaded < _SEEDS, loaded


PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    program.__name__: program
    for program in (
        choice,
        packing,
        nothing_fits,
        variables,
        variables_of_text,
        options_without_values,
    )
}

WITH_HELP: Final[dict[str, Callable[..., None]]] = {
    program.__name__: program for program in (eager_loading, write_images, spoilt_images)
}

if __name__ == "__main__":
    {**PROGRAMS, **WITH_HELP}[sys.argv[1]](*sys.argv[2:])
