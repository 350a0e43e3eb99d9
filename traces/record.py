"""Records a program's calls of the driver, with one trace for each of its processes.

A forwarder with the driver's soname is first on the program's library path. It has no code. It
needs the recorder (c/record.c) and then the real driver. So the entries of signatures.py are found
in the recorder, and all other names in the driver.
"""

from __future__ import annotations

import ctypes
import gzip
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pynvml

from gpuslice.contract import forwarder
from shim import launch, library
from traces import host
from traces.signatures import signatures

_DRIVER: Final = "libcuda.so.1"
_NOT_WRITTEN: Final = {"cuGetProcAddress", "cuGetProcAddress_v2", "cuDeviceGetAttribute"}
"""Entries that are not recorded: a replay does not need them, and programs call them very often."""
_FOUR_BYTES: Final[Mapping[str, Sequence[int]]] = {
    "cuMemPoolGetAttribute": (1, 2, 3),
    "cuMemPoolSetAttribute": (1, 2, 3),
    "cuPointerGetAttribute": (2, 6, 8, 9, 10, 13, 15, 16),
    "cuPointerGetAttributes": (2, 6, 8, 9, 10, 13, 15, 16),
}
"""The attributes whose values have four bytes. Those of other attributes have eight."""


class DriverError(Exception):
    """This machine has no driver. The text is the dynamic loader's error."""


def record(command: Sequence[str], directory: Path, did: str) -> tuple[int, Sequence[Path]]:
    """Run the command. Return its exit status, and the paths of the traces in `directory`, one for
    each process that called the driver. did: a text for the traces' headers.

    Raise DriverError, or OSError if the command cannot be started.
    """
    driver = _driver()
    recorder = library.beside(host.LIBRARY, "trace-record.so")
    template = library.beside(host.LIBRARY, forwarder.TEMPLATE).read_bytes()
    with tempfile.TemporaryDirectory() as name:
        private, raw = Path(name), Path(name) / "raw"
        raw.mkdir()
        (private / _DRIVER).write_bytes(
            forwarder.fill(template, _DRIVER, str(recorder), str(driver))
        )
        entries = private / "entries"
        entries.write_text("\n".join((*_header(command, did), *_entries(), "")))
        path = os.environ.get("LD_LIBRARY_PATH")
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{private}:{path}" if path else str(private),
            "GPUSLICE_TRACE_DRIVER": str(driver),
            "GPUSLICE_TRACE_ENTRIES": str(entries),
            "GPUSLICE_TRACE_DIR": str(raw),
        }
        status = launch.run(command, environment)
        kept = []
        for each in sorted(raw.iterdir()):
            kept.append(directory / f"{Path(command[0]).name}-{each.stem}.trace.gz")
            kept[-1].write_bytes(gzip.compress(each.read_bytes(), mtime=0))
        return status, kept


def _driver() -> Path:
    """Return the file that programs of this machine load as the driver."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DriverError(f"record: {error}") from error
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = (Path(line.split(maxsplit=5)[-1]) for line in lines)
    return next(path for path in mapped if path.name.startswith("libcuda.so"))


def _header(command: Sequence[str], did: str) -> Iterator[str]:
    """Yield the header of a trace. It names the program, but not the program's arguments."""
    yield f"# program: {Path(command[0]).name}"
    python = ".".join(platform.python_version_tuple()[:2])
    today = datetime.now(UTC).date()
    yield f"# versions: {_versions()}; Python {python}; {sys.platform}; recorded {today}"
    yield f"# did: {did}"


def _versions() -> str:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
        gpus = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return f"driver {driver}, CUDA {cuda // 1000}.{cuda % 1000 // 10}; {', '.join(gpus)}"
    return "driver unknown"


def _entries() -> Iterator[str]:
    """Yield the recorder's input: for each entry a line with its name and parameters' tokens."""
    for entry, signature in signatures().items():
        if entry in _NOT_WRITTEN or entry == "cuGetExportTable":
            continue
        mask = sum(1 << attribute for attribute in _FOUR_BYTES.get(entry, ()))
        tokens = (
            f"{token}:{mask:x}" if token.lstrip(">")[0] in "aA" else token
            for token in (parameter.token for parameter in signature.parameters)
        )
        yield " ".join((entry, *tokens))
