"""Forwarders for one run: strict mode mounts them in a container, here they precede the library
path.

A program that opens the driver by its full path still bypasses them; in a container the forwarder
lies at that path.
"""

from __future__ import annotations

from pathlib import Path

from gpuslice.contract import forwarder, names
from gpuslice.gpu import driver_root
from shim import library


class DriverError(Exception):
    """The driver's library was not found; the text names it."""


def place(directory: Path, ours: Path) -> None:
    """Write a forwarder for each library of the driver into `directory`, in front of `ours`."""
    template = library.beside(ours, forwarder.TEMPLATE).read_bytes()
    directory.mkdir()
    for soname in names.DRIVER_SONAMES:
        filled = forwarder.fill(template, soname, str(ours), str(_loaded_from(soname)))
        (directory / soname).write_bytes(filled)


def _loaded_from(soname: str) -> Path:
    """The file that programs load here, as the dynamic loader finds it."""
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
