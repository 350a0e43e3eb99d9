"""The build of the library that tests use: the shipped one, or, by GPUSLICE_PRESET, one with a
sanitizer.

Has the variables that a program needs under such a build, and the location of its reports: files,
so that a test that expects its program to fail does not mistake a report for that. Independent of
the tests.
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
"""The preset, and the library that a program not built for it must load first."""


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
    """Python exits without freeing all memory, so leak detection is off. A bus error ends a program
    as it would without a sanitizer: a file truncated under its mapping is no bug of the code."""
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
    """The sanitizers' reports since the last call; empty if there are none."""
    if PRESET == SHIPPED:
        return ""
    said = []
    for file in sorted(reports().iterdir()):
        said.append(file.read_text(errors="replace"))
        file.unlink()
    return "\n".join(said)
