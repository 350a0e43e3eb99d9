"""The ledger: an oracle, threads, fork and a million entries; under sanitizers too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import build

pytestmark = pytest.mark.sim

_RUNS = [
    *(["oracle", str(seed)] for seed in range(8)),
    *(["blocks", str(seed)] for seed in range(8)),
    ["threads"],
    ["fork"],
    ["million"],
    ["contexts"],
]


@pytest.mark.parametrize("arguments", _RUNS, ids=" ".join)
def test_ledger(build_dir: Path, arguments: list[str]) -> None:
    subprocess.run([build_dir / "bin" / "vgpu-ledger-test", *arguments], check=True)


@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_ledger_under_sanitizers(preset: str) -> None:
    program = build(preset) / "bin" / "vgpu-ledger-test"
    for arguments in (["oracle", "1"], ["blocks", "1"], ["contexts"], ["threads"], ["fork"]):
        subprocess.run([program, *arguments], check=True)
