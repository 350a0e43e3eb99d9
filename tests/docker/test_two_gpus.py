"""A container has exactly its own GPU of two, also where NVIDIA's runtime is Docker's default and
the image requests all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.docker.image import IMAGE
from lab.docker.machine import Machine
from lab.docker.programs import RELEASES
from tests.docker.grants import BUILD_S, Grant, by_cdi, create, run
from tests.docker.running import Runs
from tests.docker.running import runs as runs

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

NODES = "ls -d /dev/nvidia[0-9]"
BOTH = ["/dev/nvidia0", "/dev/nvidia1"]


@pytest.fixture(scope="module", params=list(RELEASES))
def running(build_dir: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with Machine(RELEASES[request.param], memory_bytes=(40 << 30, 24 << 30)) as machine:
        yield machine


@pytest.mark.parametrize("visible", ["void", "all"])
def test_the_default_runtime_nvidia_adds_no_gpu(grant: Grant, visible: str) -> None:
    machine = grant.machine
    environ = {names.ENV_VISIBLE_DEVICES: visible}
    machine.restart_dockerd("--default-runtime=nvidia")
    without = run(create(machine, ["sh", "-c", NODES], environment=environ))
    assert without.out.split() == BOTH * (visible == "all"), "as NVIDIA's runtime does"
    if machine.release.cdi:
        listing = ["sh", "-c", NODES]
        ran = run(create(machine, listing, environment=environ, **by_cdi(grant.device)))
        assert ran.out.split() == ["/dev/nvidia0"]


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_container_has_exactly_its_own_gpu(runs: Runs, gpu: int) -> None:
    runs.machine.restart_dockerd("--default-runtime=nvidia")
    made = runs.client.containers.create(IMAGE, "true", network_mode="none")
    made.commit("local/all", "1", changes=f"ENV {names.ENV_VISIBLE_DEVICES}=all")
    limit = ("--memory", "10GiB", "--gpu", str(gpu))
    words = ("--rm", "--", "sh", "-c", f"{NODES}; nvidia-smi -L")
    node, line = runs.run(*words, limit=limit, image="local/all:1").stdout.splitlines()
    assert node == BOTH[gpu]
    assert runs.machine.gpus[gpu].uuid in line
