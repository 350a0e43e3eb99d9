"""The policy's rows about GPUs that other programs give to containers."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.host.test_device_plugins import write

from .scene import (
    HALF,
    OWN,
    QUARTER,
    WHOLE,
    Files,
    agent_with,
    granted,
    lab_of,
    one,
    plugin,
    probe,
    refused,
)

pytestmark = pytest.mark.node

_CDI_NAME = "acme.com/thing=all"
_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def test_a_gpu_of_another_device_plugin(lab: Lab) -> None:
    """The kubelet requests the GPU by the CDI name that the device plugin returned."""
    there = lab.directory / "cdi" / "nvidia.json"
    shutil.copy(lab.sim_dir / "cdi" / "nvidia.json", there)
    given = Process(PYTHON_IMAGE, cdi=[f"{names.CDI_KIND}={lab.gpus[0].uuid}"])
    with lab.pod("mixed", one(lab, QUARTER)) as pod:
        main, other = pod.run("main", OWN), pod.run("other", given)
        assert names.ENV_VISIBLE_DEVICES not in other.exec(["env"]).out
        assert probe(main).held_to(QUARTER)
        # This container has no limit, because two device plugins serve one GPU.
        taken = probe(other)
        assert taken.driver and taken.total == WHOLE
    assert "keeps the GPU of another device plugin" in lab.agent_log.read_text()
    there.unlink()


def _requests_the_device(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    adjustment.cdi_devices.add(name=_CDI_NAME)


def test_a_gpu_of_another_nri_plugin(lab: Lab) -> None:
    """The other plugin requests a CDI device of another vendor's name. Its spec lies in a directory
    that the runtime and the agent read. A container without a share may have it."""
    gpu = json.loads((lab.sim_dir / "cdi" / "nvidia.json").read_text())
    gpu["devices"][0]["name"] = "all"
    path = lab.directory / "cdi" / "other.json"
    path.write_text(json.dumps({**gpu, "kind": _CDI_NAME.partition("=")[0]}))
    with agent_with(lab, "--cdi-dir", lab.directory / "cdi"), plugin(lab, _requests_the_device):
        with lab.pod("brought", one(lab)) as pod, refused("test_a_gpu_of_another_nri_plugin"):
            pod.create("main", OWN)
        for written in ({}, lab.share({"other": [(0, HALF, 50)]})):
            with lab.pod("brought", written) as pod:
                pod.create("main", OWN)
    path.unlink()


def _is_limited(lab: Lab, gpu: int) -> bool:
    """Return whether a share of this GPU starts and sees its limit. The context's size does not
    matter: an agent that is not ready assumes the size instead of measuring it."""
    try:
        with granted(lab, gpu=gpu) as container:
            return probe(container).limited_to(HALF)
    except CriError:
        return False


def test_a_gpu_that_another_device_plugin_gave_to_a_pod(test_programs: Files) -> None:
    """The kubelet's record assigns the GPU to another pod. The node's other GPU is shared."""
    with (
        lab_of([WHOLE] * 2, test_programs, on_host=True) as lab,
        socket.socket(socket.AF_UNIX) as theirs,
    ):
        record = lab.namespace.outside(_PLUGINS)
        record.mkdir(parents=True, exist_ok=True)
        theirs.bind(str(record / "nvidia-gpu.sock"))
        theirs.listen()
        lab.start_agent()
        write(record, {"uid-1": [lab.gpus[0].uuid]}, "nvidia.com/gpu")
        lab.wait_until(lambda: _is_limited(lab, 1), "a share of the other GPU")
        row = refused("test_a_gpu_that_another_device_plugin_gave_to_a_pod")
        with lab.pod("taken", one(lab)) as pod, row:
            pod.create("main", OWN)
        write(record, {}, "nvidia.com/gpu")
        lab.wait_until(lambda: _is_limited(lab, 0), "the agent to read the record again")
        log = lab.agent_log.read_text()
    assert "context size" not in log, "none is made on another plugin's GPUs"
