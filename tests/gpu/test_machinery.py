"""`python -m tests.gpu` with the simulated driver in the place of this machine's driver.

This verifies the rows, their account and their table. It shows nothing of a real GPU.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import VARIABLE
from tests.shim.conftest import AS_ON_A_GPU, GIB, GPUS, gpu_table, simulated
from tests.support import run

pytestmark = [pytest.mark.sim, pytest.mark.shipped, pytest.mark.timeout(600)]


def test_the_rows_run_on_the_gpu_that_the_machine_reports(build_dir: Path, tmp_path: Path) -> None:
    library = build_dir / "lib" / "libvgpu.so"
    gpus = "".join(gpu_table(minor, uuid, 4 * GIB) for minor, (uuid, _) in enumerate(GPUS))
    with simulated(build_dir, library, tmp_path, AS_ON_A_GPU, gpus) as host:
        own = {
            **{name: text for name, text in os.environ.items() if name != VARIABLE},
            "LD_LIBRARY_PATH": str(host.driver_dir),
            "SIMGPU_DIR": str(host.sim_dir),
            "PATH": f"{build_dir / 'bin'}:{os.environ['PATH']}",
        }
        # Shares and pairs need a quiet machine. `python -m bench core` measures simulated ones.
        options = ("calls", "model", "rows", "frameworks", "--gpu", "1", "--results", tmp_path)
        done = run(sys.executable, "-m", "tests.gpu", *options, env=own)
    assert done.returncode == 0, done.stdout
    (table,) = tmp_path.glob("gpu-*.md")
    said = table.read_text()
    assert "NVIDIA SimGPU" in said and f"A context takes {300 * 2**20} bytes" in said
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| test_")]
    assert len(rows) > 20
    assert {outcome for name, outcome, _ in rows if "[05 " in name} == {"passed"}
    assert "full: charged 1073741824, the GPU 1073741824" in said
    without = {name.strip("| ") for name, outcome, _ in rows if outcome != "passed"}
    needs_a_gpu = re.compile(r".*\[(torch|cupy|vllm)")
    assert all(needs_a_gpu.match(name) for name in without), rows
    seen = "tenant 1: seen 956 MiB, counted 1020 MiB"
    assert seen in said, "41 times 16 MiB and a context; the count has an allowance for code"
