"""A program that looks names up in every way (c/dlsym_test.c), and what it loads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import sanitizers

Look = Callable[..., Sequence[str]]
LIMITED = "0 2 0 1024"
"""What c/strict_program.c prints under a limit of 1 GiB."""


@pytest.fixture
def driver(build_dir: Path) -> Path:
    return build_dir / "lib" / "null" / "libcuda.so.1"


@pytest.fixture
def private(build_dir: Path) -> Path:
    return build_dir / "lib" / "tests" / "libprivate.so"


@pytest.fixture
def look(build_dir: Path, tmp_path: Path, driver: Path, private: Path) -> Look:
    """The answers to lookups: words, of which {driver}, {private} and {tmp} are paths."""

    def run(lookups: str, *preload: Path) -> Sequence[str]:
        words = lookups.format(driver=driver, private=private, tmp=tmp_path).split()
        done = subprocess.run(
            [build_dir / "bin" / "vgpu-dlsym-test", *words],
            env={
                **os.environ,
                **sanitizers.environment(),
                "LD_PRELOAD": sanitizers.preload(*preload),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run
