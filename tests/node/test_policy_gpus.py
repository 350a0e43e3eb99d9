"""The policy's rows on GPUs that other programs give to containers."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Pod, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.host.test_device_plugins import write

from .conftest import GIB, probe
from .plugins import plugin
from .rows import HALF, OWN, QUARTER, agent_with, one, refused

pytestmark = pytest.mark.node

_CDI_NAME = "acme.com/thing=all"
_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def test_a_gpu_of_another_device_plugin(lab: Lab) -> None:
    """The plugin gives it by its CDI name, as the kubelet requests it."""
    there = lab.directory / "cdi" / "nvidia.json"
    shutil.copy(lab.sim_dir / "cdi" / "nvidia.json", there)
    given = Process(PYTHON_IMAGE, cdi=[f"{names.CDI_KIND}={lab.gpus[0].uuid}"])
    with lab.pod("mixed", lab.share({"main": [(0, QUARTER, 25)]})) as pod:
        main, other = pod.run("main", OWN), pod.run("other", given)
        assert names.ENV_VISIBLE_DEVICES not in other.exec(["env"]).out
        assert probe(main).held_to(QUARTER)
        # Our limit is not in force: running two device plugins on one GPU leaves it unlimited.
        taken = probe(other)
        assert taken.driver and taken.total == 40 * GIB
    assert "keeps the GPU of another device plugin" in lab.agent_log.read_text()
    there.unlink()


@pytest.fixture
def other_vendor(lab: Lab) -> Iterator[Lab]:
    """The GPU under the name of another vendor, in the directory that the runtime reads and the
    agent is configured with."""
    gpu = json.loads((lab.sim_dir / "cdi" / "nvidia.json").read_text())
    gpu["devices"][0]["name"] = "all"
    path = lab.directory / "cdi" / "other.json"
    path.write_text(json.dumps({**gpu, "kind": _CDI_NAME.partition("=")[0]}))
    with agent_with(lab, "--cdi-dir", lab.directory / "cdi"):
        yield lab
    path.unlink()


def _requests_the_device(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    adjustment.cdi_devices.add(name=_CDI_NAME)


def test_a_gpu_of_another_nri_plugin(other_vendor: Lab) -> None:
    """A container without a share may have it."""
    lab = other_vendor
    with plugin(lab, _requests_the_device):
        with lab.pod("brought", one(lab)) as pod, refused("test_a_gpu_of_another_nri_plugin"):
            pod.create("main", OWN)
        for written in ({}, lab.share({"other": [(0, HALF, 50)]})):
            with lab.pod("brought", written) as pod:
                pod.create("main", OWN)


@pytest.fixture
def own_host(build_dir: Path, test_programs: dict[str, tuple[Path, int]]) -> Iterator[Lab]:
    """Two GPUs, and a kubelet's directories of its own."""
    assert build_dir.is_dir()
    with Lab(
        [40 * GIB] * 2, test_programs, options=Options(request_timeout_s=8), on_host=True
    ) as lab:
        yield lab


@contextmanager
def _listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        yield


def _is_limited(pod: Pod) -> bool:
    """An agent that is not ready measures no context, and assumes its size."""
    try:
        taken = probe(pod.run("main", OWN))
    except CriError:
        return False
    return (taken.total, taken.filled, taken.more) == (HALF, 0, 2)


def test_a_gpu_that_another_device_plugin_gave_to_a_pod(own_host: Lab) -> None:
    """The kubelet's record says so. The node's other GPU is not affected."""
    lab = own_host
    record = lab.namespace.outside(_PLUGINS)
    with _listening(record / "nvidia-gpu.sock"):
        lab.start_agent()
        write(record, {"uid-1": [lab.gpus[0].uuid]}, "nvidia.com/gpu")
        with lab.pod("free", lab.share({"main": [(1, HALF, 50)]})) as pod:
            lab.wait_until(lambda: _is_limited(pod), "a share of the other GPU")
        row = refused("test_a_gpu_that_another_device_plugin_gave_to_a_pod")
        with lab.pod("taken", one(lab)) as pod, row:
            pod.create("main", OWN)
        write(record, {}, "nvidia.com/gpu")
        with lab.pod("taken", one(lab)) as pod:
            lab.wait_until(lambda: _is_limited(pod), "the agent to read the record again")
    assert "context size" not in lab.agent_log.read_text(), "none is made on another plugin's GPUs"
