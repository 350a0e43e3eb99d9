"""Memory pools, stream capture and graph memory of the simulated driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simgpu import graph_programs, interface_programs, pool_programs
from tests.simgpu.host import ROOT, Host

pytestmark = pytest.mark.sim


def run_program(host: Host, module: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.simgpu.{module}", name],
        cwd=ROOT,
        env=host.env(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", pool_programs.PROGRAMS)
def test_pools(idle_host: Host, name: str) -> None:
    run_program(idle_host, "pool_programs", name)


@pytest.mark.parametrize("name", graph_programs.PROGRAMS)
def test_graphs(idle_host: Host, name: str) -> None:
    run_program(idle_host, "graph_programs", name)


@pytest.mark.parametrize("name", interface_programs.PROGRAMS)
def test_interface(idle_host: Host, name: str) -> None:
    run_program(idle_host, "interface_programs", name)
