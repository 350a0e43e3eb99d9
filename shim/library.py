"""Locates `libvgpu.so` of this installation, and writes forwarders for `shim run --strict`.

The forwarders' directory is put before the library path. A program that opens the driver by its
full path still bypasses them. It cannot do so in a container, because the agent mounts the
forwarder at that path.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

from gpuslice.contract import forwarder, names
from gpuslice.gpu import driver_root

_CHECKOUT_BUILD: Final = Path(__file__).resolve().parent.parent / "build" / "dev" / "lib"


class LibraryError(Exception):
    """The library was not found; the text names the remedy."""


class DriverError(Exception):
    """The driver's library was not found; the text names it."""


def beside(library: Path, name: str) -> Path:
    """Return the path of another file of the same build, in the directory of `library`."""
    path = library.with_name(name)
    if not path.is_file():
        raise LibraryError(f"{path} is missing; it is built and installed with {library.name}")
    return path


def find() -> Path:
    """Return the path of this installation's library: in this package or this checkout's build."""
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


def place_forwarders(directory: Path, ours: Path) -> None:
    """Write a forwarder for each of the driver's libraries. A forwarder loads `ours` first."""
    template = beside(ours, forwarder.TEMPLATE).read_bytes()
    directory.mkdir()
    for soname in names.DRIVER_SONAMES:
        filled = forwarder.fill(template, soname, str(ours), str(_loaded_from(soname)))
        (directory / soname).write_bytes(filled)


def _loaded_from(soname: str) -> Path:
    """Return the path of the file that the dynamic loader loads for `soname` here."""
    try:
        driver_root.load(soname)
    except (OSError, driver_root.NotFoundError) as error:
        raise DriverError(f"run --strict: {error}") from error
    stem = soname.removesuffix(".1")
    maps = Path("/proc/self/maps").read_text().splitlines()
    for path in (Path(line.split(maxsplit=5)[-1]) for line in maps):
        if path.name.startswith(stem):
            return path
    raise DriverError(
        f"run --strict: {soname}: not found in /proc/self/maps: the loaded driver must be a file of"
        " that name"
    )
