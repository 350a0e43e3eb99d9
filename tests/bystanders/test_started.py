"""Pods that request no share start and stay unchanged on a real containerd: before the node agent
runs, beside it, and after it has exited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gpuslice.contract import names
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Sandbox
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.bystanders.pods import ROWS
from tests.bystanders.running import Running, start
from tests.node.kubelet import Json
from tests.node.scene import OWN, plugin

pytestmark = [pytest.mark.node, pytest.mark.cluster]

_PHASES = ("before", "beside", "after")


def _nothing(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """The other plugin's whole behaviour."""


@dataclass
class Story:
    """By row. started: by phase, the runtime's specification, or the reason of a failure. ended:
    in which phase a pod of which phase had ended."""

    started: dict[str, dict[str, object]] = field(default_factory=lambda: defaultdict(dict))
    ended: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    log: str = ""


@pytest.fixture(scope="module")
def bare_lab(build_dir: object) -> Iterator[Lab]:
    with Lab(options=Options(request_timeout_s=8)) as made:
        done = made.namespace.run(["mount", "--make-rshared", "/"])
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture(scope="module")
def story(bare_lab: Lab, bystanders: dict[str, Json]) -> Iterator[Story]:
    """Running pods end with the lab."""
    lab, recorded = bare_lab, Story()
    there: dict[tuple[str, str], Running] = {}
    with plugin(lab, _nothing):
        for phase in _PHASES:
            if phase == "beside":
                lab.start_agent()
            elif phase == "after":
                recorded.log = lab.agent_log.read_text()
                lab.stop_agent()
            for row in ROWS:
                try:
                    running = start(lab, bystanders[row])
                except CriError as error:
                    recorded.started[row][phase] = str(error)
                    continue
                there[phase, row] = running
                recorded.started[row][phase] = running.specifications(lab)
            for (began, row), running in there.items():
                if not running.running():
                    recorded.ended[row].append((began, phase))
        yield recorded


@pytest.fixture
def lab(bare_lab: Lab, story: Story) -> Lab:
    """With its agent, after the story."""
    if not bare_lab.agent_running:
        bare_lab.start_agent()
    return bare_lab


@pytest.mark.parametrize("row", ROWS)
def test_a_pod_without_a_share_starts_and_stays_unchanged(story: Story, row: str) -> None:
    """The runtime's whole specification is the same with the agent and without."""
    started = story.started[row]
    assert isinstance(started["before"], list), started
    assert started == dict.fromkeys(_PHASES, started["before"])
    assert story.ended[row] == []


def test_the_agent_logs_no_warning_about_pods_without_a_share(story: Story) -> None:
    lines = [line for line in story.log.splitlines() if "level=warning" in line]
    assert [line for line in lines if "container=" in line or "pod=" in line] == []


# --- GPUs of other plugins, and changes while a pod runs


def _device(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    adjustment.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)


def test_a_gpu_that_nvidias_nri_plugin_gives(lab: Lab) -> None:
    """DCGM exporter and the like get their GPU this way. Their pods request no share."""
    with plugin(lab, _device, "nvidia-toolkit", "10"), lab.pod("dcgm-exporter") as pod:
        assert Running(pod, (pod.run("main", OWN),)).running()


def test_a_pod_that_is_labelled_while_it_runs(lab: Lab) -> None:
    """containerd keeps the labels of the sandbox, until the kubelet makes another one."""
    with lab.pod("train") as pod:
        pod.run("main", OWN).stop()
        pod.create("main", OWN, attempt=1).start()
        uid = pod.uid
    for provider in (names.ISOLATION_PROVIDER, "mps"):
        label = {names.LABEL_ISOLATION_PROVIDER: provider}
        with lab.pod("train", None, label, Sandbox(uid=uid)) as pod:
            assert Running(pod, (pod.run("main", OWN),)).running()
