"""The environment of programs under a build with a sanitizer, which GPUSLICE_PRESET names.

Sanitizers write reports to files. So a test that expects a program to fail does not mistake a
report for that failure.
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
"""For each preset, the library that a program built without the sanitizer must load first."""


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
    """Return the variables that sanitizers read. Leak detection is off, because Python exits
    without freeing all memory. Tests truncate mapped files, so SIGBUS is not reported as an error
    of the library."""
    if PRESET == SHIPPED:
        return {}
    log = f"log_path={reports() / 'report'}"
    return {
        "ASAN_OPTIONS": f"{log}:detect_leaks=0:handle_sigbus=0",
        "UBSAN_OPTIONS": f"{log}:print_stacktrace=1",
        "TSAN_OPTIONS": f"{log}:handle_sigbus=0",
    }


def preload(*libraries: Path) -> str:
    """Return the value of LD_PRELOAD for programs that are built without a sanitizer."""
    return " ".join(str(library) for library in (runtime(), *libraries) if library)


def take_reports() -> str:
    """Return the sanitizers' reports since the last call, or "" if there are none."""
    if PRESET == SHIPPED:
        return ""
    said = []
    for file in sorted(reports().iterdir()):
        said.append(file.read_text(errors="replace"))
        file.unlink()
    return "\n".join(said)
