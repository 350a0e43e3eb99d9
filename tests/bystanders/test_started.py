"""Pods that request no share start and stay unchanged on a real containerd: before the node agent
runs, beside it, and after it has exited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from gpuslice.contract import names
from lab.node.cri import CriError, Sandbox
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri
from tests.bystanders.pods import ROWS
from tests.bystanders.running import Running, start
from tests.node.kubelet import Json
from tests.node.scene import OWN, lab_of, plugin

pytestmark = [pytest.mark.node, pytest.mark.cluster]


def _nothing(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """Leave the adjustment as it is. This is the hook of a second NRI plugin."""


@dataclass
class Story:
    """log: the agent's log. seen: by row of the table, the runtime's specification or an error
    before the agent runs, while it runs, and after its exit."""

    seen: dict[str, list[object]] = field(default_factory=lambda: defaultdict(list))
    log: str = ""


@pytest.fixture(scope="module")
def bare_lab(build_dir: object) -> Iterator[Lab]:
    with lab_of() as made:
        done = made.namespace.run(["mount", "--make-rshared", "/"])
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture(scope="module")
def story(bare_lab: Lab, bystanders: dict[str, Json]) -> Iterator[Story]:
    """Start every pod once before the agent runs, once beside it, and once after its exit."""
    lab, story = bare_lab, Story()
    there: list[tuple[str, Running]] = []
    with plugin(lab, _nothing):
        for phase in ("before", "beside", "after"):
            if phase == "beside":
                lab.start_agent()
            elif phase == "after":
                story.log = lab.agent_log.read_text()
                lab.stop_agent()
            for row in ROWS:
                try:
                    running = start(lab, bystanders[row])
                except CriError as error:
                    story.seen[row].append(str(error))
                    continue
                there.append((row, running))
                story.seen[row].append(running.specifications(lab))
            for row, running in there:
                if not running.running():
                    story.seen[row].append(f"a pod has ended: {phase}")
        yield story


@pytest.fixture
def lab(bare_lab: Lab, story: Story) -> Lab:
    """Return the lab with a running agent, after `story` has recorded all phases."""
    if not bare_lab.agent_running:
        bare_lab.start_agent()
    return bare_lab


@pytest.mark.parametrize("row", ROWS)
def test_a_pod_without_a_share_starts_and_stays_unchanged(story: Story, row: str) -> None:
    """The runtime's whole specification is the same with the agent and without."""
    before, *others = story.seen[row]
    assert isinstance(before, list), before
    assert others == [before, before]


def test_the_agent_logs_no_warning_about_pods_without_a_share(story: Story) -> None:
    lines = [line for line in story.log.splitlines() if "level=warning" in line]
    assert [line for line in lines if "container=" in line or "pod=" in line] == []


def test_a_pod_that_is_labelled_while_it_runs(lab: Lab) -> None:
    """containerd reads a pod's labels once, when the kubelet creates its sandbox."""
    with lab.pod("train") as pod:
        pod.run("main", OWN).stop()
        pod.create("main", OWN, attempt=1).start()
        uid = pod.uid
    for provider in (names.ISOLATION_PROVIDER, "mps"):
        label = {names.LABEL_ISOLATION_PROVIDER: provider}
        with lab.pod("train", None, label, Sandbox(uid=uid)) as pod:
            assert Running(pod, (pod.run("main", OWN),)).running()
