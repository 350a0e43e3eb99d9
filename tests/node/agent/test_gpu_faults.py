"""Only the GPU that hangs in the driver becomes unhealthy, also across a restart of the agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.cri import CriError
from lab.node.lab import Lab
from tests.support import GIB

from ..scene import OWN, WHOLE, get, granted, lab_of, one, sample

pytestmark = pytest.mark.node

HOUR_NS = 3600 * 10**9
SIZE = 4 * GIB


def late(lab: Lab, duration_ns: int) -> None:
    """Let NVML's query of the memory of GPU 0 take this time."""
    command: list[str | Path] = [sys.executable, "-m", "simgpu", "fault", "--dir", lab.sim_dir]
    command += ["--gpu", "0", "latency", "MEMORY_INFO", str(duration_ns)]
    done = lab.namespace.run(command)
    assert done.returncode == 0, done.stderr


def run(lab: Lab, name: str, minor: int) -> None:
    with granted(lab, size=SIZE, gpu=minor, core=10, name=name):
        pass


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_of([WHOLE] * 2) as lab:
        lab.start_agent()
        yield lab


def test_a_gpu_that_hangs_takes_no_other(lab: Lab) -> None:
    held = lab.cri.run_pod("held", one(lab, SIZE, 1, 10))
    container = held.run("main", OWN)
    late(lab, HOUR_NS)
    numbers = iter(range(1000))

    def the_gpu_is_unhealthy() -> bool:
        run(lab, f"other-{next(numbers)}", 1)  # the agent queries NVML at each creation
        return sample(lab, "gpuslice_gpus") == 1

    lab.wait_until(the_gpu_is_unhealthy, "the GPU is unhealthy")
    problem = f"{lab.gpus[0].uuid}.*: must be a healthy GPU: NVML did not answer for it in 10 s"
    with pytest.raises(CriError, match=problem):
        run(lab, "on-it", 0)
    assert get(lab, "/readyz")[0] == 200
    lab.stop_agent()
    lab.start_agent()
    container.stop()
    container.remove()
    held.run("main", OWN)
    run(lab, "new", 1)
    with pytest.raises(CriError, match="NVML did not answer for it in 10 s"):
        run(lab, "on-it-again", 0)
    lab.stop_agent()
    late(lab, 0)
    lab.start_agent()
    lab.wait_until(lambda: sample(lab, "gpuslice_gpus") == 2, "the GPU is back")
    run(lab, "on-it-at-last", 0)
