"""The structs of grant and region as C defines them: cffi reads the compiler's own header.

ABI mode: nothing is compiled or loaded. A struct is a view of bytes that the caller has read; a
pointer into them keeps them in memory.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

import cffi

_ffi: Final = cffi.FFI()
_ffi.cdef(resources.files("shim").joinpath("include/vgpu/layout.h").read_text())

constants: Final[Any] = _ffi.dlopen(None)
"""The header's VGPU_... constants, as attributes."""


def size(struct: str) -> int:
    return int(_ffi.sizeof(f"struct {struct}"))


def over(data: bytes, struct: str, offset: int) -> Any:
    """The struct at that byte offset; ValueError if the bytes end before it does."""
    if offset < 0 or offset + size(struct) > len(data):
        raise ValueError(f"struct {struct} at {offset} of {len(data)} bytes")
    return _ffi.cast(f"struct {struct} *", _ffi.from_buffer(data) + offset)
