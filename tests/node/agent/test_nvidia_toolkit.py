"""A host with NVIDIA's container toolkit: its real programs describe the GPUs, and runc runs their
hooks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.gpu import driver_root
from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import BUILD, Lab
from nri_plugin.host.cdi_generator import FILE
from tests.node.conftest import GIB, probe
from tools.images.nvidia_ctk import PROGRAMS

pytestmark = pytest.mark.node

SIZE = 40 * GIB
HALF = 20 * GIB
OWN = Process(PYTHON_IMAGE)
RESERVES = Process(PYTHON_IMAGE, environ={"NVIDIA_GPU_MEMORY_REQUEST": "40960"})
SOCKET = Path("/run/nvidia-persistenced/socket")
CTK = Path("/usr/bin/nvidia-ctk")
UVM = "/dev/nvidia-uvm"
HOSTS = Path("/run/cdi/nvidia.yaml")


@pytest.fixture(scope="module")
def host(test_programs: dict[str, tuple[Path, int]]) -> Iterator[Lab]:
    with Lab([SIZE, SIZE], test_programs, on_host=True) as lab:
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


def refresh(lab: Lab) -> dict[str, object]:
    """Write the spec as nvidia-cdi-refresh.service of the toolkit's package does."""
    environment = {k: v for k, v in lab.driver_environment().items() if k != "LD_LIBRARY_PATH"}
    command = [str(CTK), "--quiet", "cdi", "generate"]
    done = lab.namespace.run([*command, f"--output={HOSTS}"], environment)
    assert done.returncode == 0, done.stderr
    shown = lab.namespace.run([*command, "--format=json"], environment)
    spec: dict[str, object] = json.loads(shown.stdout)
    return spec


def start(lab: Lab) -> None:
    lab.start_agent(cdi_dir=lab.directory / "none")


def ready(lab: Lab) -> tuple[int, str]:
    return pages.get(lab.agent_http, "/readyz")


def generated(lab: Lab) -> Path:
    return lab.namespace.outside(lab.run_dir / ".cdi" / FILE)


def test_a_share_by_the_specs_of_the_toolkits_package(lab: Lab) -> None:
    spec = json.dumps(refresh(lab))
    assert "apply-cuda-memory-limits" in spec and str(SOCKET) in spec, "what is to be left out"
    start(lab)
    lab.wait_until(lambda: ready(lab) == (200, "ok\n"), "the agent to be ready")
    assert not generated(lab).exists()
    with lab.pod("share", lab.share({"main": [(1, HALF, 50)]})) as pod:
        container = pod.run("main", RESERVES)
        assert probe(container).held_to(HALF)
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        assert container.exec(query).out.split() == [lab.gpus[1].uuid]
        assert not container.exec(["sh", "-c", f"ls {SOCKET}"]).out
    # What the spec mounts may vanish.
    lab.namespace.outside(SOCKET).unlink()
    with lab.pod("later", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)
    lab.namespace.write(SOCKET, "")


def test_a_share_by_specs_that_the_agent_generates(lab: Lab) -> None:
    start(lab)
    lab.wait_until(lambda: ready(lab) == (200, "ok\n"), "the agent to be ready")
    assert generated(lab).exists()
    with lab.pod("share", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", RESERVES)).held_to(HALF)


def test_an_unusable_spec_of_the_hosts_is_replaced(lab: Lab) -> None:
    refresh(lab)
    file = lab.namespace.outside(HOSTS)
    file.write_text(file.read_text().replace("libcuda.so.580", "libcuda.so.579"))
    start(lab)
    lab.wait_until(lambda: ready(lab) == (200, "ok\n"), "the agent to be ready")
    assert 'msg="CDI spec replaced"' in lab.agent_log.read_text()
    with lab.pod("share", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)


def test_without_a_control_node_no_gpu_is_usable(lab: Lab) -> None:
    """No driver is here whose module could be loaded: the agent names the cause and the command."""
    node = lab.namespace.outside(Path(UVM))
    kept = node.with_name("kept")
    node.rename(kept)
    try:
        start(lab)
        lab.wait_until(lambda: "must contain" in ready(lab)[1], "the agent to name the node")
        status, text = ready(lab)
        assert status == 503
        assert f"deviceNodes: must contain {UVM}, without which no program can compute" in text
        assert "the control device nodes are missing" in text and "nvidia-modprobe" in text
    finally:
        kept.rename(node)


LAYOUTS = {
    "usr/lib/x86_64-linux-gnu": True,
    "usr/lib64": True,
    "lib64": True,
    "usr/local/nvidia/lib64": True,
    "usr/lib/nvidia/tesla": True,
    "opt/nvidia/current/lib64": True,
    "run/opengl-driver/lib": False,
    "usr/local/lib": False,
}
"""Directory of the libraries below the driver root; whether ld.so.conf names it, if it is none that
is always searched."""


@pytest.mark.parametrize(("directory", "configured"), LAYOUTS.items())
def test_the_agent_finds_the_driver_where_nvidia_ctk_does(
    host: Lab, directory: str, configured: bool
) -> None:
    """The agent also searches some directories that nvidia-ctk does not."""
    root = host.directory / "trees" / directory.replace("/", "-")
    libraries = root / directory
    libraries.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        file = libraries / f"{name}.580.65.06"
        shutil.copy(BUILD / "lib" / "simgpu" / f"{name}.1", file)
        (libraries / f"{name}.1").symlink_to(file.name)
    (root / "etc").mkdir()
    if configured:
        (root / "etc/ld.so.conf").write_text(f"/{directory}\n")
        assert host.namespace.run(["ldconfig", "-r", root]).returncode == 0
    found = driver_root.find(root, driver_root.NVML)
    assert found == libraries / "libnvidia-ml.so.580.65.06"
    environment = {"SIMGPU_DIR": str(host.sim_dir), "LD_LIBRARY_PATH": ""}
    command = [str(CTK), "--quiet", "cdi", "generate", "--format=json"]
    done = host.namespace.run([*command, f"--driver-root={root}", "--dev-root=/"], environment)
    described = done.returncode == 0 and f"/{directory}/libcuda.so.580" in done.stdout
    assert described is configured, done.stderr
