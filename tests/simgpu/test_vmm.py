"""Physical memory, arrays and external memory of the simulated driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simgpu import vmm_programs
from tests.simgpu.host import ROOT, Host

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", vmm_programs.PROGRAMS)
def test_vmm(idle_host: Host, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simgpu.vmm_programs", name],
        cwd=ROOT,
        env=idle_host.env(),
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
