"""The token of each parameter of the driver's entries: how the parameter's values are recorded.

The prototypes are those of simgpu/src/abi/cuda.def. A token defines what the recorder (c/record.c)
writes before a call and after it.

    n4 u1 u2 u4 u8 x8   a value of so many bytes: n signed, u unsigned, x hexadecimal
    s                   a string, or a buffer for one, which is never recorded
    >TOKEN              a pointer to a value that the driver writes
    <TOKEN =TOKEN       a pointer to a value that the driver reads; one that it reads and writes
    h32                 a pointer to a struct of 32 bytes
    [TOKEN:d            a pointer to an array, whose number of elements is parameter d
    a:b >a:b            a pointer to an attribute's value, read or written; parameter b names it
    >A                  the array of pointers of cuPointerGetAttributes
    L                   a pointer to a CUlaunchConfig, with the attributes to which it points
    ?                   a pointer to something that is not recorded
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_DEFINITIONS: Final = Path(__file__).resolve().parents[1] / "simgpu/src/abi/cuda.def"
_ROW: Final = re.compile(
    r"^(?:ENTRY|OLDER|PER_THREAD)\((\w+), (\w+), (\d+),\s*\(([^()]*)\)"
    r"(?:, \([^()]*\), (_ptsz|_ptds), (\d+))?",
    re.MULTILINE,
)
_PARAMETER: Final = re.compile(r"(.*?)\s*(\w)")
_VALUES: Final = {
    "int": "n4",
    "CUdevice": "n4",
    "unsigned char": "u1",
    "unsigned short": "u2",
    "unsigned int": "u4",
    "float": "u4",
    "size_t": "u8",
    "uint64_t": "u8",
    "unsigned long long": "u8",
    "CUdeviceptr": "x8",
}
_STRUCT_BYTES: Final = {
    "CUmemAllocationProp": 32,
    "CUmemLocation": 8,
    "CUmemPoolProps": 88,
    "CUuuid": 16,
}
_HANDLES: Final = {
    "CUarray",
    "CUcontext",
    "CUevent",
    "CUexternalMemory",
    "CUfunction",
    "CUgraph",
    "CUgraphExec",
    "CUgraphNode",
    "CUgreenCtx",
    "CUkernel",
    "CUlibrary",
    "CUmemGenericAllocationHandle",
    "CUmemoryPool",
    "CUmipmappedArray",
    "CUmodule",
    "CUstream",
}
_BY_VALUE: Final = ("CUipcMemHandle", "CUipcEventHandle", "CUmemLocation")
"""Structs that are passed by value. Entries with such a parameter cannot be recorded,
because the recorder passes each parameter on as one word."""
_SPECIAL: Final[Mapping[str, Mapping[str, str]]] = {
    "cuThreadExchangeStreamCaptureMode": {"a": "=n4"},
    "cuGraphGetNodes": {"b": "?", "c": "=u8"},
    "cuMemSetAccess": {"c": "[h12:d"},
    "cuLibraryLoadData": {"c": "[n4:e", "d": "[x8:e", "f": "[n4:h", "g": "[x8:h"},
    "cuModuleLoadDataEx": {"d": "[n4:c", "e": "[x8:c"},
    "cuPointerGetAttributes": {"b": "[n4:a", "c": ">A"},
    "cuPointerGetAttribute": {"a": ">a:b"},
    "cuMemPoolGetAttribute": {"c": ">a:b"},
    "cuMemPoolSetAttribute": {"c": "a:b"},
    "cuDeviceGetGraphMemAttribute": {"c": ">x8"},
    "cuLaunchKernel": {"j": "x8", "k": "x8"},
    "cuLaunchCooperativeKernel": {"j": "x8"},
    "cuLaunchKernelEx": {"a": "L", "c": "x8", "d": "x8"},
}


@dataclass(frozen=True, slots=True)
class Parameter:
    letter: str
    type: str
    token: str


@dataclass(frozen=True, slots=True)
class Signature:
    entry: str
    base: str
    """The entry's name in cuGetProcAddress."""
    since: int
    """The first CUDA version for which cuGetProcAddress finds this entry by the name `base`."""
    per_thread: bool
    """Whether stream 0 is the per-thread stream of the caller."""
    parameters: tuple[Parameter, ...]


@cache
def signatures() -> Mapping[str, Signature]:
    """Return every entry that can be recorded, by name, in the order of cuda.def."""
    return {each.entry: each for each in _parsed(_DEFINITIONS.read_text())}


def _parsed(text: str) -> Iterator[Signature]:
    for entry, base, since, written, suffix, twin_since in _ROW.findall(text):
        parameters = tuple(_parameters(entry, written))
        if any(each.type in _BY_VALUE for each in parameters):
            continue
        yield Signature(entry, base, int(since), False, parameters)
        if suffix:
            yield Signature(entry + suffix, base, int(twin_since), True, parameters)


def _parameters(entry: str, written: str) -> Iterator[Parameter]:
    special = _SPECIAL.get(entry, {})
    for text in written.split(",") if written != "void" else ():
        matched = _PARAMETER.fullmatch(text.strip())
        assert matched is not None, (entry, text)
        type_, letter = matched.groups()
        yield Parameter(letter, type_, special.get(letter) or _token(type_))


def _token(type_: str) -> str:
    pointee = type_.removesuffix("*").rstrip()
    if not type_.endswith("*"):
        return _VALUES.get(type_, "x8")
    if pointee in ("char", "const char"):
        return "s"
    if pointee in ("void", "const void"):
        return "x8"
    if pointee == "void *":
        return ">x8"
    if pointee.removeprefix("const ") in _STRUCT_BYTES:
        size = _STRUCT_BYTES[pointee.removeprefix("const ")]
        return f"h{size}" if pointee.startswith("const ") else f">h{size}"
    if pointee in _VALUES or pointee in _HANDLES:
        return ">" + _VALUES.get(pointee, "x8")
    return ">?" if pointee.endswith("*") else "?"
