"""The policy's rows on GPUs of other programs, and on nodes whose security module hides limits."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Pod, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.host.test_device_plugins import write

from .conftest import GIB, probe
from .plugins import Meddling, plugin
from .rows import HALF, OWN, QUARTER, one, refused

pytestmark = pytest.mark.node


@pytest.fixture
def given(lab: Lab) -> Iterator[Process]:
    """A container to which a device plugin gives the GPU by its CDI name, as the kubelet requests
    it."""
    there = lab.directory / "cdi" / "nvidia.json"
    shutil.copy(lab.sim_dir / "cdi" / "nvidia.json", there)
    yield Process(PYTHON_IMAGE, cdi=[f"{names.CDI_KIND}={lab.gpus[0].uuid}"])
    there.unlink()


def test_a_gpu_of_another_device_plugin(lab: Lab, given: Process) -> None:
    with lab.pod("mixed", lab.share({"main": [(0, QUARTER, 25)]})) as pod:
        main, other = pod.run("main", OWN), pod.run("other", given)
        assert names.ENV_VISIBLE_DEVICES not in other.exec(["env"]).out
        assert probe(main).held_to(QUARTER)
        # Our limit is not in force: running two device plugins on one GPU leaves it unlimited.
        taken = probe(other)
        assert taken.driver and taken.total == 40 * GIB
    assert "keeps the GPU of another device plugin" in lab.agent_log.read_text()


def test_a_gpu_of_another_device_plugin_and_a_grant(lab: Lab, given: Process) -> None:
    with (
        lab.pod("twice", one(lab)) as pod,
        refused("a_gpu_of_another_device_plugin_and_a_grant"),
    ):
        pod.create("main", given)


CDI_NAMES = ("acme.com/thing=all", "management.nvidia.com/gpu=all", "acme.com/nic=0")


@pytest.fixture
def specs(lab: Lab) -> Iterator[Lab]:
    """The GPU under names of other vendors, in the directory that the runtime reads and the agent
    is configured with; and a device that is no GPU."""
    gpu = json.loads((lab.sim_dir / "cdi" / "nvidia.json").read_text())
    gpu["devices"][0]["name"] = "all"
    nic = {"name": "0", "containerEdits": {"env": ["NIC=0"]}}
    written = [
        {**gpu, "kind": CDI_NAMES[0].partition("=")[0]},
        {**gpu, "kind": CDI_NAMES[1].partition("=")[0]},
        {"cdiVersion": "0.6.0", "kind": CDI_NAMES[2].partition("=")[0], "devices": [nic]},
    ]
    paths = [lab.directory / "cdi" / f"other-{number}.json" for number in range(3)]
    for path, spec in zip(paths, written, strict=True):
        path.write_text(json.dumps(spec))
    lab.stop_agent()
    lab.start_agent(options=["--cdi-dir", lab.directory / "cdi"])
    yield lab
    for path in paths:
        path.unlink()
    lab.stop_agent()
    lab.start_agent()


def _asks_for(name: str) -> Meddling:
    def meddle(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
        adjustment.cdi_devices.add(name=name)

    return meddle


def _opens(major: int) -> Meddling:
    def meddle(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
        rule = adjustment.linux.resources.devices.add(allow=True, type="c", access="rwm")
        rule.major.value = major

    return meddle


def test_a_gpu_of_another_nri_plugin(specs: Lab) -> None:
    with (
        plugin(specs, _asks_for(CDI_NAMES[0])),
        specs.pod("brought", one(specs)) as pod,
        refused("a_gpu_of_another_nri_plugin"),
    ):
        pod.create("main", OWN)
    for meddle, what in (
        (_asks_for(CDI_NAMES[1]), f"CDI device {CDI_NAMES[1]}"),
        (_opens(195), "the cgroup rule c 195:"),
    ):
        with (
            plugin(specs, meddle),
            specs.pod("brought", one(specs)) as pod,
            pytest.raises(CriError, match=f"injected a GPU by {re.escape(what)}"),
        ):
            pod.create("main", OWN)
        for written in ({}, specs.share({"other": [(0, HALF, 50)]})):
            with plugin(specs, meddle), specs.pod("brought", written) as pod:
                pod.create("main", OWN)


def test_a_device_without_a_gpu_of_another_nri_plugin(specs: Lab) -> None:
    """Also if a device plugin gives it, beside a share."""
    with plugin(specs, _opens(10)), specs.pod("opens", one(specs)) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)
    with plugin(specs, _asks_for(CDI_NAMES[2])):
        for written in ({}, one(specs)):
            with specs.pod("brought", written) as pod:
                container = pod.run("main", OWN)
                assert "NIC=0\n" in container.exec(["env"]).out
                assert probe(container).driver == bool(written)
    with specs.pod("given", one(specs)) as pod:
        container = pod.run("main", Process(PYTHON_IMAGE, cdi=[CDI_NAMES[2]]))
        assert probe(container).held_to(HALF)
    for name in CDI_NAMES[:2]:
        with (
            specs.pod("given", one(specs)) as pod,
            pytest.raises(CriError, match=r"already has a GPU.*\(device /dev/nvidia"),
        ):
            pod.create("main", Process(PYTHON_IMAGE, cdi=[name]))


# --- what the node must be ---

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


def _is_limited(pod: Pod) -> bool:
    """An agent that is not ready measures no context, and assumes its size."""
    taken = probe(pod.run("main", OWN))
    return (taken.total, taken.filled, taken.more) == (HALF, 0, 2)


def _starts(pod: Pod) -> bool:
    try:
        return _is_limited(pod)
    except CriError:
        return False


def test_a_gpu_that_another_device_plugin_gave_to_a_pod(own_host: Lab) -> None:
    """The kubelet's record says so. The node's other GPU is not affected."""
    lab = own_host
    with _listening(lab, _PLUGINS / "nvidia-gpu.sock"):
        lab.start_agent()
        try:
            _not_ready(lab, f"a device plugin listens on {_PLUGINS}/nvidia-gpu.sock")
            record = lab.namespace.outside(_PLUGINS)
            write(record, {"uid-1": [lab.gpus[0].uuid]}, "nvidia.com/gpu")
            with lab.pod("free", lab.share({"main": [(1, HALF, 50)]})) as pod:
                assert _is_limited(pod)
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
    """SELinux, by other answers of the kernel (tests/nri_plugin/labelled.py)."""
    lab = own_host
    with lab.pod("first") as pod:  # its sandbox has a label
        pod.run("main", OWN)
        lab.start_agent(program=("tests.nri_plugin.labelled", "lacks-type"))
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
        lab.start_agent(program=("tests.nri_plugin.labelled", "knows-type"))
        try:
            lab.wait_until(lambda: _readiness(lab)[0] == 200, "the agent to be ready")
            with lab.pod("shared", one(lab)) as share:
                assert probe(share.run("main", OWN)).held_to(HALF)
        finally:
            lab.stop_agent()
