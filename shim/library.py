"""Locates `libvgpu.so` of this installation. The node agent places it on a node (store)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from gpuslice.contract import names

_CHECKOUT_BUILD: Final = Path(__file__).resolve().parent.parent / "build" / "dev" / "lib"


class LibraryError(Exception):
    """The library was not found; the text names the remedy."""


def beside(found: Path, name: str) -> Path:
    """Another file of the same build as `found`."""
    path = found.with_name(name)
    if not path.is_file():
        raise LibraryError(f"{path} is missing; it is built and installed with {found.name}")
    return path


def find() -> Path:
    """The library of this installation: beside this package, or built in this checkout."""
    installed = resources.files("shim").joinpath(names.FILE_LIBRARY)
    candidates = [Path(str(installed)), _CHECKOUT_BUILD / names.FILE_LIBRARY]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = " or ".join(map(str, candidates))
    raise LibraryError(
        f"{names.FILE_LIBRARY} is not in {looked}; "
        "build it: cmake --preset dev && cmake --build --preset dev"
    )
