"""Pods that request no share start and stay unchanged on a real containerd: before the node agent
runs, beside it, and after it has exited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process, Sandbox
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.bystanders.pods import ROWS, Json
from tests.bystanders.running import Running, start
from tests.node.plugins import plugin

pytestmark = [pytest.mark.node, pytest.mark.cluster]

_PHASES = ("before", "beside", "after")


def _nothing(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """The other plugin's whole behaviour."""


@dataclass
class Story:
    """The specification or the reason of a failure, by phase and row."""

    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    specifications: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    ended: list[tuple[str, str, str]] = field(default_factory=list)
    """Phase, row, and in which phase it had ended."""
    log: str = ""


@pytest.fixture(scope="module")
def lab(build_dir: Path) -> Iterator[Lab]:
    assert build_dir.is_dir()
    with Lab() as made:
        done = made.namespace.run(["mount", "--make-rshared", "/"])
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture(scope="module")
def story(lab: Lab, bystanders: dict[str, Json]) -> Iterator[Story]:
    """Running pods end with the lab."""
    recorded = Story()
    with plugin(lab, _nothing):
        there: dict[tuple[str, str], Running] = {}
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
                    recorded.refused[phase, row] = str(error)
                    continue
                there[phase, row] = running
                recorded.specifications[phase, row] = running.specifications(lab)
            ended = (key for key, running in there.items() if not running.running())
            recorded.ended += [(*key, phase) for key in ended]
        yield recorded


@pytest.mark.parametrize("row", ROWS)
def test_a_pod_without_a_share_starts_and_stays_unchanged(story: Story, row: str) -> None:
    """The runtime's whole specification is the same with the agent and without."""
    assert {phase: text for (phase, of), text in story.refused.items() if of == row} == {}
    before, *others = (story.specifications[phase, row] for phase in _PHASES)
    assert others == [before, before]
    assert [each for each in story.ended if each[1] == row] == []


def test_the_agent_logs_no_warning_about_pods_without_a_share(story: Story) -> None:
    lines = [line for line in story.log.splitlines() if "level=warning" in line]
    assert [line for line in lines if "container=" in line or "pod=" in line] == []


# --- GPUs of other plugins, and changes while a pod runs


def _device(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    adjustment.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)


def test_a_gpu_that_nvidias_nri_plugin_gives(lab: Lab, story: Story) -> None:
    """DCGM exporter and the like get their GPU this way. Their pods request no share."""
    if not lab.agent_running:
        lab.start_agent()
    with plugin(lab, _device, "nvidia-toolkit", "10"), lab.pod("dcgm-exporter") as pod:
        assert Running(pod, (pod.run("main", Process(PYTHON_IMAGE)),)).running()


def test_a_pod_that_is_labelled_while_it_runs(lab: Lab, story: Story) -> None:
    """containerd keeps the labels of the sandbox, until the kubelet makes another one."""
    if not lab.agent_running:
        lab.start_agent()
    process = Process(PYTHON_IMAGE)
    with lab.pod("train") as pod:
        pod.run("main", process).stop()
        pod.create("main", process, attempt=1).start()
        uid = pod.uid
    for provider in (names.ISOLATION_PROVIDER, "mps"):
        label = {names.LABEL_ISOLATION_PROVIDER: provider}
        with lab.pod("train", None, label, Sandbox(uid=uid)) as pod:
            assert Running(pod, (pod.run("main", process),)).running()
