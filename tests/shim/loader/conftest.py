"""A program that looks names up in every way (c/dlsym_test.c), and what it loads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import sanitizers

Look = Callable[..., Sequence[str]]


@pytest.fixture
def driver(build_dir: Path) -> Path:
    return build_dir / "lib" / "null" / "libcuda.so.1"


@pytest.fixture
def private(build_dir: Path) -> Path:
    return build_dir / "lib" / "tests" / "libprivate.so"


@pytest.fixture
def look(build_dir: Path) -> Look:
    def run(*lookups: str, preload: Sequence[Path] = ()) -> Sequence[str]:
        done = subprocess.run(
            [build_dir / "bin" / "vgpu-dlsym-test", *lookups],
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
