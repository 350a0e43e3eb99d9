"""NVIDIA's real container toolkit describes the GPUs of a host, and runc runs its hooks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab
from nri_plugin.host.cdi_generator import FILE
from tools.images.nvidia_ctk import PROGRAMS

from ..scene import HALF, WHOLE, Files, get, granted, lab_of, probe

pytestmark = pytest.mark.node

RESERVES = Process(PYTHON_IMAGE, environ={"NVIDIA_GPU_MEMORY_REQUEST": "40960"})
SOCKET = Path("/run/nvidia-persistenced/socket")
CTK = Path("/usr/bin/nvidia-ctk")
HOSTS = Path("/run/cdi/nvidia.yaml")


@pytest.fixture(scope="module")
def host(test_programs: Files) -> Iterator[Lab]:
    with lab_of([WHOLE] * 2, test_programs, on_host=True) as lab:
        for program in PROGRAMS.values():
            shutil.copy(program.ensure(), lab.namespace.outside(Path("/usr/bin", program.name)))
        lab.namespace.write(SOCKET, "")
        for spec in lab.namespace.outside(Path("/run/cdi")).iterdir():
            spec.unlink()
        (lab.directory / "none").mkdir()
        yield lab


@pytest.fixture
def lab(host: Lab) -> Iterator[Lab]:
    yield host
    host.stop_agent()
    host.namespace.run(["sh", "-c", f"rm -f {HOSTS} {host.run_dir}/.cdi/*"])


def refresh(lab: Lab) -> str:
    """Write the spec as the toolkit's nvidia-cdi-refresh.service does, and return it."""
    environment = {k: v for k, v in lab.driver_environment().items() if k != "LD_LIBRARY_PATH"}
    command = [str(CTK), "--quiet", "cdi", "generate"]
    done = lab.namespace.run([*command, f"--output={HOSTS}"], environment)
    assert done.returncode == 0, done.stderr
    shown = lab.namespace.run([*command, "--format=json"], environment)
    return json.dumps(json.loads(shown.stdout))


def start(lab: Lab) -> None:
    lab.start_agent(cdi_dir=lab.directory / "none")
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")


def generated(lab: Lab) -> Path:
    return lab.namespace.outside(lab.run_dir / ".cdi" / FILE)


def test_a_share_by_the_specs_of_the_toolkits_package(lab: Lab) -> None:
    spec = refresh(lab)
    assert "apply-cuda-memory-limits" in spec and str(SOCKET) in spec, "what is to be left out"
    start(lab)
    assert not generated(lab).exists()
    with granted(lab, RESERVES, gpu=1) as container:
        assert probe(container).held_to(HALF)
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        assert container.exec(query).out.split() == [lab.gpus[1].uuid]
        assert not container.exec(["sh", "-c", f"ls {SOCKET}"]).out
    # A file that the spec mounts is removed.
    lab.namespace.outside(SOCKET).unlink()
    with granted(lab, name="later") as container:
        assert probe(container).held_to(HALF)
    lab.namespace.write(SOCKET, "")


def test_a_share_by_specs_that_the_agent_generates(lab: Lab) -> None:
    start(lab)
    assert generated(lab).exists()
    with granted(lab, RESERVES) as container:
        assert probe(container).held_to(HALF)
