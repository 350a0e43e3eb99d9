"""A GPU that hangs in the driver is one unhealthy GPU, also across a restart of the agent."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from nri_plugin.gpu import record
from tests.node.conftest import GIB

pytestmark = pytest.mark.node

OWN = Process(PYTHON_IMAGE)
HOUR_NS = 3600 * 10**9


@pytest.fixture
def two_gpus() -> Iterator[Lab]:
    with Lab([40 * GIB] * 2, options=Options(request_timeout_s=8)) as lab:
        lab.start_agent()
        yield lab


def fault(lab: Lab, *words: object) -> None:
    command: list[str | Path] = [sys.executable, "-m", "simgpu", "fault", "--dir", lab.sim_dir]
    done = lab.namespace.run([*command, "--gpu", "0", *map(str, words)])
    assert done.returncode == 0, done.stderr


def gpus(lab: Lab) -> float:
    _, text = pages.get(lab.agent_http, "/metrics")
    found = re.search(r"^gpuslice_gpus (\S+)", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def run(lab: Lab, name: str, minor: int) -> None:
    with lab.pod(name, lab.share({"main": [(minor, 4 * GIB, 10)]})) as pod:
        pod.run("main", OWN)


def test_a_gpu_that_hangs_takes_no_other(two_gpus: Lab) -> None:
    lab = two_gpus
    held = lab.cri.run_pod("held", lab.share({"main": [(1, 4 * GIB, 10)]}))
    container = held.run("main", OWN)
    fault(lab, "latency", "MEMORY_INFO", HOUR_NS)
    numbers = iter(range(1000))

    def the_gpu_is_unhealthy() -> bool:
        run(lab, f"other-{next(numbers)}", 1)  # each creation lets the agent query NVML
        return gpus(lab) == 1

    lab.wait_until(the_gpu_is_unhealthy, "the GPU is unhealthy")
    problem = f"{lab.gpus[0].uuid}.*: must be a healthy GPU: NVML did not answer for it in 10 s"
    with pytest.raises(CriError, match=problem):
        run(lab, "on-it", 0)
    assert pages.get(lab.agent_http, "/readyz")[0] == 200
    lab.stop_agent()
    lab.start_agent()
    container.stop()
    container.remove()
    held.run("main", OWN)
    run(lab, "new", 1)
    with pytest.raises(CriError, match="NVML did not answer for it in 10 s"):
        run(lab, "on-it-again", 0)
    lab.stop_agent()
    fault(lab, "latency", "MEMORY_INFO", 0)
    lab.start_agent()
    lab.wait_until(lambda: gpus(lab) == 2, "the GPU is back")
    run(lab, "on-it-at-last", 0)


def test_a_context_is_measured_on_a_gpu_that_no_container_has(two_gpus: Lab) -> None:
    lab = two_gpus
    with lab.pod("busy", lab.share({"main": [(0, 4 * GIB, 10)]})) as pod:
        pod.run("main", OWN)
        lab.stop_agent()
        lab.namespace.outside(lab.run_dir / record.FILE).unlink()
        seen = len(lab.agent_log.read_text())
        lab.start_agent()

        def measured() -> list[str]:
            log = lab.agent_log.read_text()[seen:]
            return re.findall(r'msg="context size" gpu=(\S+)', log)

        lab.wait_until(lambda: bool(measured()), "the size of a context")
        assert measured() == [lab.gpus[1].uuid]
