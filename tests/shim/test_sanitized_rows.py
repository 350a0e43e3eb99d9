"""A part of the matrix over builds with ASan and UBSan, and with TSan.

`make sanitize` has all of the rows; these cover most of the tables: every GPU that can be limited,
physical memory, arrays, graphs, memory of two processes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import sanitizers
from tests.support import ROOT

pytestmark = [pytest.mark.sim, pytest.mark.shipped]

_ROWS = "test_row_03 or test_row_13 or test_row_14 or test_row_15 or test_row_16"
_FILES = (
    *("region/test_environment.py", "charge/test_physical.py", "charge/test_arrays.py"),
    *("charge/test_graphs.py", "charge/test_ipc.py"),
)


@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_rows_over_a_watched_build(preset: str) -> None:
    files = [f"tests/shim/{name}" for name in _FILES]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files, "-k", _ROWS],
        cwd=ROOT,
        env={**os.environ, sanitizers.VARIABLE: preset},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
