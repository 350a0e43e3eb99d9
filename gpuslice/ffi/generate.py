"""Generates the modules `*_ffi` of this package from its `.h` files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cffi import FFI

PLACE: Final = Path(__file__).parent


def write(directory: Path = PLACE) -> None:
    for header in PLACE.glob("*.h"):
        builder = FFI()
        builder.set_source(f"{header.stem}_ffi", None)
        builder.cdef(header.read_text())
        builder.emit_python_code(str(directory / f"{header.stem}_ffi.py"))


if __name__ == "__main__":
    write()
