"""Which build of the library the tests run programs under: the one that is shipped, or, by
GPUSLICE_PRESET, one that a sanitizer watches.

Holds what a program needs to run under such a build, and where its reports go: into files, so that
a test that expects its program to fail does not take a report for that. Knows no test.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHIPPED: Final = "dev"
VARIABLE: Final = "GPUSLICE_PRESET"
PRESET: Final = os.environ.get(VARIABLE, SHIPPED)
_RUNTIMES: Final = {SHIPPED: None, "asan": "libasan.so", "tsan": "libtsan.so"}
"""The preset, and what a program that was not built for it must load before all else."""


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gpuslice-reports.")


def reports() -> Path:
    return Path(_kept().name)


@functools.cache
def runtime() -> Path | None:
    name = _RUNTIMES[PRESET]
    if name is None:
        return None
    command = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).resolve(strict=True)


def environment() -> Mapping[str, str]:
    """Python ends without freeing all it has, so leaks are not looked for. A bus error ends a
    program as it would: that a file was truncated under its mapping is no bug of the code's."""
    if PRESET == SHIPPED:
        return {}
    log = f"log_path={reports() / 'report'}"
    return {
        "ASAN_OPTIONS": f"{log}:detect_leaks=0:handle_sigbus=0",
        "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
        "TSAN_OPTIONS": f"{log}:handle_sigbus=0",
    }


def preload(*libraries: Path) -> str:
    """LD_PRELOAD for programs that are not built with a sanitizer."""
    return " ".join(str(library) for library in (runtime(), *libraries) if library)


def take_reports() -> str:
    """What the sanitizers said since the last time; empty: nothing."""
    if PRESET == SHIPPED:
        return ""
    said = []
    for file in sorted(reports().iterdir()):
        said.append(file.read_text(errors="replace"))
        file.unlink()
    return "\n".join(said)
