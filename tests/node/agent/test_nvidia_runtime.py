"""NVIDIA's container runtime is containerd's default, as on EKS and AKS.

The program is NVIDIA's own. It queries the simulated driver on a host of the lab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpuslice.contract import names
from lab.node.catalogue import ENVIRON_IMAGE, TWICE_IMAGE
from lab.node.cri import Container, Process, Sandbox
from lab.node.host import install_nvidia_runtime
from lab.node.lab import Lab
from nri_plugin.host import bundle
from nri_plugin.messages import nri_pb2 as nri
from tests.support import until

from ..scene import HALF, OWN, WHOLE, Files, granted, lab_of, plugin, probe

pytestmark = pytest.mark.node

ALL = Process(ENVIRON_IMAGE)
NODES = ("/dev/nvidia0", "/dev/nvidia1")
VISIBLE = names.ENV_VISIBLE_DEVICES
_NONE = f"{VISIBLE}={names.VISIBLE_DEVICES_NONE}"


@pytest.fixture(scope="module", params=["auto", "cdi"])
def bare_lab(test_programs: Files, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Yield a lab with NVIDIA's runtime. In its default mode, `auto`, it describes the GPUs that
    NVML lists. In mode `cdi` it reads a CDI spec of the host."""
    with lab_of([WHOLE] * 2, test_programs, on_host=True, default_runtime="nvidia") as lab:
        config = f'[nvidia-container-runtime]\nmode = "{request.param}"\n'
        install_nvidia_runtime(lab.namespace, lab.sim_dir, config)
        if request.param == "cdi":
            generate = ["nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml"]
            done = lab.namespace.run(generate, lab.driver_environment())
            assert done.returncode == 0, done
        yield lab


def _spec(lab: Lab, container: Container) -> Any:
    """Return the OCI configuration that NVIDIA's runtime gave to runc."""
    file = bundle.directory(lab.containerd.paths.state, container.id) / "config.json"
    return json.loads(lab.namespace.outside(file).read_text())


def _gpus(lab: Lab, container: Container) -> Sequence[str]:
    devices = _spec(lab, container)["linux"].get("devices", ())
    return sorted(each["path"] for each in devices if each["path"] in NODES)


def _visible(container: Container) -> str:
    lines = container.exec(["env"]).out.splitlines()
    return next((line for line in lines if line.startswith(f"{VISIBLE}=")), "")


def _strays(lab: Lab) -> str:
    lines = lab.agent_log.read_text().splitlines()
    return "\n".join(line for line in lines if "from NVIDIA's runtime" in line)


def test_an_image_gets_all_gpus_without_the_agent_and_none_beside_it(bare_lab: Lab) -> None:
    bare_lab.stop_agent()
    with bare_lab.pod("before") as pod:
        early = pod.run("main", ALL)
        assert _gpus(bare_lab, early) == [*NODES]
        assert probe(early).driver
        bare_lab.start_agent()
        until(lambda: early.id in _strays(bare_lab), "the agent reports the earlier container")
        assert probe(early).driver, "it keeps what it has"
        with bare_lab.pod("beside") as other:
            late = other.run("main", ALL)
            assert _gpus(bare_lab, late) == [] and not probe(late).driver
            assert _visible(late) == _NONE


def test_a_share_gets_exactly_its_gpu_and_its_limit(lab: Lab) -> None:
    """NVIDIA's runtime adds nothing, whatever the pod's variables name."""
    for gpu, process in enumerate((OWN, ALL)):
        with granted(lab, process, gpu=gpu) as main:
            assert probe(main).held_to(HALF)
            listed = main.exec(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"])
            assert listed.out.split() == [lab.gpus[gpu].uuid]
            assert _visible(main) == _NONE
            mounts = [each["destination"] for each in _spec(lab, main)["mounts"]]
            assert len(mounts) == len(set(mounts))
            assert _gpus(lab, main) == [NODES[gpu]]


def _gives_all(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    adjustment.env.add(key=VISIBLE, value="all")


def test_a_variable_of_an_earlier_nri_plugin_is_no_conflict(lab: Lab) -> None:
    with plugin(lab, _gives_all, index="10"), lab.pod("both") as pod:
        container = pod.run("main", OWN)
        assert _gpus(lab, container) == []
        assert _visible(container) == _NONE


def test_what_keeps_its_gpus(lab: Lab) -> None:
    with lab.pod("class", of=Sandbox(runtime_handler="nvidia")) as pod:
        assert _gpus(lab, pod.run("main", ALL)) == [*NODES]
    with lab.pod("privileged", of=Sandbox(privileged=True)) as pod:
        made = pod.run("main", Process(ENVIRON_IMAGE, privileged=True))
        assert set(_gpus(lab, made)) == {*NODES}
        assert probe(made).driver
    with lab.pod("twice") as pod:
        # The variable occurs twice, with the image's value and the pod's. NRI replaces the first,
        # but NVIDIA's runtime reads the last.
        twice = Process(ENVIRON_IMAGE, environ={VISIBLE: "0"})
        assert _gpus(lab, pod.run("main", twice)) == [NODES[0]]
        assert _gpus(lab, pod.run("none", Process(TWICE_IMAGE))) == []
