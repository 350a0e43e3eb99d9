"""Parts of the library, each tested by a program in C. The programs' files in tests/shim/c describe
the tests. Most also run under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sanitizers
from tests.conftest import build
from tests.support import ROOT

pytestmark = pytest.mark.sim

_CLAIMS = ["claims threads", "claims full", "claims fork", "claims shared"]
_SEEDED = [f"ledger {what} {seed}" for what in ("oracle", "blocks") for seed in range(8)]
_LEDGER = ["ledger threads", "ledger fork"]
_LAUNCH = [
    *("launch lost", "launch locked", "launch two-gpus", "launch reused", "launch samples"),
    *(
        "launch future",
        "launch lead",
        "launch kinds",
        "launch streams",
        "launch spare",
        "launch lane",
    ),
]
_MARKERS = [f"markers {what}" for what in ("current", "green", "modes", "destroyed")]
_RUNS = [*_CLAIMS, *_SEEDED, *_LEDGER, *_LAUNCH, *_MARKERS, "counter 8 50000", "entries"]
_SANITIZED = [*_CLAIMS, "ledger oracle 1", "ledger blocks 1", *_LEDGER]


def _run(built: Path, command: str) -> None:
    part, *arguments = command.split()
    subprocess.run([built / "bin" / f"vgpu-{part}-test", *arguments], check=True)


@pytest.mark.parametrize("command", _RUNS)
def test_a_part(build_dir: Path, command: str) -> None:
    _run(build_dir, command)


@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_parts_under_sanitizers(preset: str) -> None:
    for command in _SANITIZED:
        _run(build(preset), command)


_ROWS = (
    "test_row_03 or test_row_13 or test_row_14 or test_row_15 or test_row_16"
    " or test_row_23 or counted_as_exited"
)
_REGION = "region/test_environment region/test_slots"
_CHARGE = "charge/test_physical charge/test_arrays charge/test_graphs charge/test_ipc"


@pytest.mark.shipped
@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_rows_over_a_watched_build(preset: str) -> None:
    """`make sanitize` tests all rows of the matrix. The rows here cover most of the library: limits
    of all GPUs, forks, lost slots, physical memory, arrays, graphs, and shared memory."""
    files = [f"tests/shim/{name}.py" for name in f"{_REGION} {_CHARGE}".split()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files, "-k", _ROWS],
        cwd=ROOT,
        env={**os.environ, sanitizers.VARIABLE: preset},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
