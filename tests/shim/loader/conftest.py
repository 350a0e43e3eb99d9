"""A program that looks names up in every way (c/dlsym_test.c), and the libraries that it loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import sanitizers
from tests.support import run

Look = Callable[..., Sequence[str]]
LIMITED = "0 2 0 1024"
"""The output of c/strict_program.c under a limit of 1 GiB."""


@pytest.fixture
def driver(build_dir: Path) -> Path:
    return build_dir / "lib" / "null" / "libcuda.so.1"


@pytest.fixture
def private(build_dir: Path) -> Path:
    return build_dir / "lib" / "tests" / "libprivate.so"


@pytest.fixture
def look(build_dir: Path, tmp_path: Path, driver: Path, private: Path) -> Look:
    """A function that runs vgpu-dlsym-test. {driver}, {private} and {tmp} in lookups are paths."""

    def answers(lookups: str, *preload: Path) -> Sequence[str]:
        words = lookups.format(driver=driver, private=private, tmp=tmp_path).split()
        preloaded = {**sanitizers.environment(), "LD_PRELOAD": sanitizers.preload(*preload)}
        program = build_dir / "bin" / "vgpu-dlsym-test"
        done = run(program, *words, env={**os.environ, **preloaded}, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return answers
