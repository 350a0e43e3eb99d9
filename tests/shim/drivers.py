"""Builds programs and small drivers from C. A small driver is a libcuda.so.1 with few functions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "c"
DRIVERS: Final = SOURCES / "drivers"
_LINKED: Final = ("-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
_FLAGS: Final = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", *_LINKED)


def build_driver(directory: Path, source: Path | str, *, compiler: str = "gcc") -> Path:
    """Build the driver in `directory`, from a file of SOURCES or from a test's C text."""
    driver = build(directory / "driver.so", source, *_FLAGS, compiler=compiler)
    return driver.rename(directory / "libcuda.so.1")


def build(path: Path, source: Path | str, *flags: str | Path, compiler: str = "gcc") -> Path:
    """Build a shared object if `path` ends in .so, and a program otherwise."""
    text = source if isinstance(source, str) else f'#include "{source}"\n'
    shared = ["-shared", "-fPIC"] if path.suffix == ".so" else []
    language = ["-x", "c", "-", "-x", "none"]
    every = [*shared, "-o", path, *language, *flags, "-ldl", "-lpthread"]
    subprocess.run([compiler, "-O1", "-D_GNU_SOURCE", *every], input=text, text=True, check=True)
    return path
