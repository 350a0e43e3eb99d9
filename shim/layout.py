"""The structs of grant and region as C has them: cffi reads the header that the compiler reads.

ABI mode: nothing is compiled or loaded. A struct is laid over bytes that somebody read; a pointer
into them lives as long as they do.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import cffi

_ffi: Final = cffi.FFI()
_ffi.cdef(resources.files("shim").joinpath("include/vgpu/layout.h").read_text())

constants: Final[Any] = _ffi.dlopen(None)
"""The header's VGPU_... numbers, as attributes."""


def size(struct: str) -> int:
    return int(_ffi.sizeof(f"struct {struct}"))


def over(data: bytes, struct: str, offset: int) -> Any:
    """The struct that begins at that byte; ValueError where the bytes end before it does."""
    if offset < 0 or offset + size(struct) > len(data):
        raise ValueError(f"struct {struct} at {offset} of {len(data)} bytes")
    return _ffi.cast(f"struct {struct} *", _ffi.from_buffer(data) + offset)
