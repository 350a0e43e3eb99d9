"""What the library adds to an allocation: one reserve and one refund, uncontended.

Feeds on vgpu-core-bench (tests/shim/c/core_bench.c), which measures all rows in one process.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bench import Result
from contract import grant_file, names, region_file

ROOT = Path(__file__).resolve().parent.parent
ROWS = {
    "nothing": "an empty function",
    "plain_atomic": "atomic add and subtract",
    "robust_mutex": "two robust mutex sections",
    "reserve_refund": "vgpu_reserve and vgpu_refund",
}
AT_MOST = {"reserve_refund_per_robust_mutex": 4.0}
"""A ratio, not a time: what the kernel's own answer to a dying holder costs is the yardstick."""


def _build() -> Path:
    for command in (
        ["cmake", "--preset", "dev"],
        ["cmake", "--build", "--preset", "dev", "--target", "vgpu-core-bench"],
    ):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / "dev" / "bin" / "vgpu-core-bench"


def _measure(program: Path, pairs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        card = grant_file.Card("GPU-00000000-0000-0000-0000-000000000000", 1 << 30, 100, 0)
        (directory / names.FILE_GRANT).write_bytes(grant_file.fresh(grant_file.Grant(1, [card])))
        (directory / names.FILE_REGION).write_bytes(region_file.fresh(1, 1))
        done = subprocess.run(
            [program, str(pairs)],
            env={**os.environ, names.ENV_DIR: name},
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        )
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}


def run(quick: bool) -> Result:
    measured = _measure(_build(), 300_000 if quick else 5_000_000)
    figures = {f"{name}_ns": ns for name, ns in measured.items()}
    for rival in ("plain_atomic", "robust_mutex"):
        figures[f"reserve_refund_per_{rival}"] = round(
            measured["reserve_refund"] / measured[rival], 2
        )
    rows = [
        (ROWS[name], f"{ns:.1f}", f"{ns / measured['plain_atomic']:.1f}")
        for name, ns in measured.items()
    ]
    return Result(figures, AT_MOST, ("one pair", "ns", "x atomic"), rows)
