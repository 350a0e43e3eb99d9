"""Every simulated entry point with an argument removed.

Reads cuda.def, so entries added there are covered too. One pointer or handle is NULL at a time, the
others are valid; then all arguments are 0. Ends with status 0 if nothing crashes, and only
documented calls succeed. Each name is printed before the call, so the last one names a crash.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.support import ROOT

LIST: Final = ROOT / "simgpu/src/abi/cuda.def"
PTX: Final = b".version 8.0\n.target sm_80\n.visible .entry none() { ret; }\n"

# Documented as optional, or as meaningful when NULL: there the call succeeds.
OPTIONAL: Final = {
    "cuCtxCreate_v3": "b",
    "cuCtxCreate_v4": "b",
    "cuCtxGetApiVersion": "a",
    "cuCtxGetDevice_v2": "b",
    "cuCtxGetId": "a",
    "cuCtxGetStreamPriorityRange": "ab",
    "cuCtxPopCurrent": "a",
    "cuCtxPopCurrent_v2": "a",
    "cuCtxSetCurrent": "a",
    "cuCtxSynchronize_v2": "a",
    "cuFuncGetParamInfo": "d",
    "cuGraphAddNode_v2": "d",
    "cuGraphGetNodes": "b",
    "cuGraphInstantiate": "cd",
    "cuGraphInstantiate_v2": "cd",
    "cuStreamGetCaptureInfo": "c",
    "cuStreamGetCaptureInfo_v2": "cdef",
    "cuStreamGetCaptureInfo_v3": "cdefg",
    "cuGetProcAddress_v2": "e",
    "cuKernelGetParamInfo": "d",
    "cuMemGetAddressRange": "ab",
    "cuMemGetAddressRange_v2": "ab",
    # Of a kernel without parameters; only one of the two may be given.
    "cuLaunchCooperativeKernel": "j",
    "cuLaunchKernel": "jk",
    "cuLaunchKernelEx": "cd",
    # No options.
    "cuLibraryLoadData": "cdfg",
    "cuLibraryLoadFromFile": "cdfg",
    "cuModuleLoadDataEx": "de",
    # Its argument is not checked.
    "cuLaunchHostFunc": "c",
    "cuStreamAddCallback": "c",
    "cuStreamGetCtx_v2": "c",
    "cuUserObjectCreate": "b",
    # A size for every block size.
    "cuOccupancyMaxPotentialBlockSize": "d",
    "cuOccupancyMaxPotentialBlockSizeWithFlags": "d",
}


class Parameter(NamedTuple):
    type: str
    name: str

    @property
    def may_be_null(self) -> bool:
        return "*" in self.type or self.type in HANDLES


HANDLES: Final = (
    *("CUcontext", "CUevent", "CUmodule", "CUfunction", "CUlibrary", "CUkernel", "CUmemoryPool"),
    *("CUgraph", "CUgraphNode", "CUgraphExec", "CUuserObject", "CUarray", "CUmipmappedArray"),
    *("CUexternalMemory", "CUmemGenericAllocationHandle"),
)
WIDE: Final = ("size_t", "uint64_t", "CUdeviceptr", "CUstream", "CUoccupancyB2DSize", *HANDLES)


def entries() -> Iterator[tuple[str, list[Parameter]]]:
    text = re.sub(r"/\*.*?\*/", "", LIST.read_text(), flags=re.DOTALL)
    rows = re.findall(r"^[A-Z_]+\((\w+), \w+, (\d+), \(([^)]*)\)", text, re.MULTILINE)
    for symbol, since, inside in rows:
        if int(since) > 13000:
            continue  # not of this generation
        written = inside.split(",") if inside != "void" else []
        yield symbol, [Parameter(each[:-1].replace(" ", ""), each[-1]) for each in written]


# A function of the program that a stream calls.
does_nothing = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(lambda *_: None)


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class Good:
    """A value for each type of argument, that most calls accept."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self._cuda = cuda
        # Outlives every call that may write into it.
        self._scratch = ctypes.create_string_buffer(1 << 16)
        self._memory = self._made("cuMemAlloc_v2", ctypes.c_size_t(1 << 16))
        self._low = self._made("cuMemAlloc", 1 << 16)
        self.of_type = {
            "CUcontext": self._made("cuDevicePrimaryCtxRetain", 0),
            "CUevent": self._made("cuEventCreate", 0),
            "CUmodule": self._made("cuModuleLoadData", PTX),
            "CUlibrary": self._made("cuLibraryLoadData", PTX, None, None, 0, None, None, 0),
        }
        module, library = (ctypes.c_void_p(self.of_type[key]) for key in ("CUmodule", "CUlibrary"))
        self.of_type["CUfunction"] = self._made("cuModuleGetFunction", module, b"none")
        graph = ctypes.c_void_p(self._made("cuGraphCreate", 0))
        self.of_type["CUgraph"] = graph.value or 0
        self.of_type["CUgraphNode"] = self._made("cuGraphAddEmptyNode", graph, None, 0)
        self.of_type["CUgraphExec"] = self._made("cuGraphInstantiateWithFlags", graph, 0)
        self.of_type["CUmemoryPool"] = self._made("cuDeviceGetDefaultMemPool", 0)
        self.of_type["CUkernel"] = self._made("cuLibraryGetKernel", library, b"none")

    def _made(self, symbol: str, *arguments: Any) -> int:
        out = ctypes.c_uint64()
        assert getattr(self._cuda, symbol)(ctypes.byref(out), *arguments) == 0, symbol
        return out.value

    def value(self, parameter: Parameter) -> Any:
        match parameter.type:
            case "constchar*":
                return b"none"
            case "constvoid*":
                return PTX
            case "CUdeviceptr":
                return ctypes.c_uint64(self._memory)
            case "CUdeviceptr_v1":
                return ctypes.c_uint32(self._low)
            case "CUipcMemHandle" | "CUipcEventHandle":
                return IpcHandle()
            case "CUhostFn" | "CUstreamCallback":
                return does_nothing
            case kind if "*" in kind:
                return self._scratch
            case kind if kind in self.of_type:
                return ctypes.c_uint64(self.of_type[kind])
            case kind if kind in WIDE:
                return ctypes.c_uint64(kind == "size_t")
            case "CUdevice" | "int":
                return 0
            case _:
                return 1


def begin(cuda: ctypes.CDLL) -> None:
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0


def say(line: str) -> None:
    """Flushed: what follows may crash."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    wrong = []
    asked = 0
    begin(cuda)
    good = Good(cuda)
    for symbol, parameters in entries():
        for absent in filter(lambda each: each.may_be_null, parameters):
            say(f"{symbol}: {absent.name} is NULL")
            code = getattr(cuda, symbol)(
                *(None if each is absent else good.value(each) for each in parameters)
            )
            asked += 1
            if code == 0 and absent.name not in OPTIONAL.get(symbol, ""):
                wrong.append(f"{symbol} succeeds where {absent.type} {absent.name} is NULL")
            begin(cuda)
    for symbol, parameters in entries():
        say(f"{symbol}: all arguments are 0")
        getattr(cuda, symbol)(
            *(
                IpcHandle() if each.type.startswith("CUipc") else ctypes.c_uint64(0)
                for each in parameters
            )
        )
        begin(cuda)
    say("\n".join(wrong) or f"{asked} calls refused as they should")
    return 1 if wrong or asked < 150 else 0


if __name__ == "__main__":
    sys.exit(main())
