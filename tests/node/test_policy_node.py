"""The policy's rows on what the node must be: its GPUs are of no other program, and its security
module lets containers use the files of their limit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Pod, Process
from lab.node.lab import Lab
from tests.nri_plugin.host.test_device_plugins import write

from .conftest import GIB, probe
from .rows import HALF, OWN, one, refused

pytestmark = pytest.mark.node

_PLUGINS = Path("/var/lib/kubelet/device-plugins")


@pytest.fixture(scope="module")
def own_host(build_dir: Path, test_programs: dict[str, tuple[Path, int]]) -> Iterator[Lab]:
    """Two GPUs, and a kubelet's directories of its own."""
    assert build_dir.is_dir()
    with Lab([40 * GIB] * 2, test_programs, on_host=True) as lab:
        yield lab


@contextmanager
def _listening(lab: Lab, path: Path) -> Iterator[None]:
    there = lab.namespace.outside(path)
    there.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(there))
        theirs.listen()
        yield
    there.unlink()


def _readiness(lab: Lab) -> tuple[int, str]:
    return pages.get(lab.agent_http, "/readyz")


def _not_ready(lab: Lab, text: str) -> None:
    lab.wait_until(lambda: text in _readiness(lab)[1], f"not ready: {text}")
    assert _readiness(lab)[0] == 503


def _starts(pod: Pod) -> bool:
    try:
        return probe(pod.run("main", OWN)).held_to(HALF)
    except CriError:
        return False


def test_a_gpu_that_another_device_plugin_gave_to_a_pod(own_host: Lab) -> None:
    """By the kubelet's record; the node's other GPU is not affected."""
    lab = own_host
    with _listening(lab, _PLUGINS / "nvidia-gpu.sock"):
        lab.start_agent()
        try:
            _not_ready(lab, f"a device plugin listens on {_PLUGINS}/nvidia-gpu.sock")
            record = lab.namespace.outside(_PLUGINS)
            write(record, {"uid-1": [lab.gpus[0].uuid]}, "nvidia.com/gpu")
            with lab.pod("free", lab.share({"main": [(1, HALF, 50)]})) as pod:
                assert probe(pod.run("main", OWN)).held_to(HALF)
            with (
                lab.pod("taken", one(lab)) as pod,
                refused("a_gpu_that_another_device_plugin_gave_to_a_pod"),
            ):
                pod.create("main", OWN)
            write(record, {}, "nvidia.com/gpu")
            with lab.pod("taken", one(lab)) as pod:
                lab.wait_until(lambda: _starts(pod), "the agent to read the record again")
        finally:
            lab.stop_agent()


def test_a_node_that_nvidias_dra_driver_serves(own_host: Lab) -> None:
    """No file of the node says which GPUs its claims hold."""
    lab = own_host
    registry = Path("/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock")
    with _listening(lab, registry):
        lab.start_agent()
        try:
            _not_ready(lab, f"NVIDIA's DRA driver listens on {registry}")
            for gpu in range(2):
                with (
                    lab.pod("shared", lab.share({"main": [(gpu, HALF, 50)]})) as pod,
                    refused("a_node_that_nvidias_dra_driver_serves"),
                ):
                    pod.create("main", OWN)
            with lab.pod("bystander") as pod:
                pod.run("main", Process(PYTHON_IMAGE))
        finally:
            lab.stop_agent()


def test_labels_that_keep_containers_from_their_limit(own_host: Lab) -> None:
    """SELinux, by other answers of the kernel (labelled.py)."""
    lab = own_host
    with lab.pod("first") as pod:  # its sandbox has a label
        pod.run("main", OWN)
        lab.start_agent(program=("tests.node.labelled", "lacks-type"))
        try:
            _not_ready(lab, "SELinux does not let system_u:system_r:container_t:s0:c1,c2")
            with (
                lab.pod("shared", one(lab)) as share,
                refused("labels_that_keep_containers_from_their_limit"),
            ):
                share.create("main", OWN)
            pod.run("beside", OWN)
        finally:
            lab.stop_agent()


def test_labels_that_let_containers_use_their_limit(own_host: Lab) -> None:
    lab = own_host
    with lab.pod("first") as pod:
        pod.run("main", OWN)
        lab.start_agent(program=("tests.node.labelled", "knows-type"))
        try:
            lab.wait_until(lambda: _readiness(lab)[0] == 200, "the agent to be ready")
            with lab.pod("shared", one(lab)) as share:
                assert probe(share.run("main", OWN)).held_to(HALF)
        finally:
            lab.stop_agent()
