"""The short form of `make endure` (endure.py): pods come and go for a minute. Each component is
killed twice meanwhile, and finally all processes. Afterwards the machine is as before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

_SMALL = "--pods 20 --gpus 4x23040Mi"


@pytest.mark.parametrize(
    "phases", ["calm down --minutes 1", "kills down --kills 2", "all"], ids=lambda it: it.split()[0]
)
def test_limits_hold_all_that_fits_runs_and_nothing_is_left(build_dir: Path, phases: str) -> None:
    assert build_dir.is_dir()
    done = run(sys.executable, "-m", "tests.e2e.endure", *phases.split(), *_SMALL.split())
    assert done.returncode == 0, done.stdout + done.stderr
