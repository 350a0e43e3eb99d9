"""Faults of a node, and that no container runs without its limit because of one."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from bench.faults import bystanders
from gpuslice.contract import names
from lab.node.catalogue import (
    LINKED_VOLUME,
    LINKED_VOLUME_IMAGE,
    OWN_PRELOAD,
    PRELOAD_IMAGE,
    PYTHON_IMAGE,
)
from lab.node.cri import Container, CriError, Process
from lab.node.lab import Lab

from .conftest import GIB, probe, said

pytestmark = pytest.mark.node

HALF = 20 * GIB
OWN = Process(PYTHON_IMAGE)
LABELS = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}

ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED
UUID = "GPU-5e1f0a70-0000-4000-8000-000000000000"

MALFORMED = (
    f'{{"gpu":[{{"minor":0,"id":"{UUID}","resources":'
    f'{{"{names.RESOURCE_MEMORY}":"12 potatoes"}}}}]}}'
)


def test_a_malformed_annotation_is_refused_with_its_reason(lab: Lab) -> None:
    refused = pytest.raises(CriError, match=r"gpuslice refuses .*12 potatoes")
    with lab.pod("malformed", {ALLOCATED: MALFORMED}, LABELS) as pod, refused:
        pod.create("main", OWN)


@pytest.mark.parametrize("title", ["killed between requests", bystanders.OWN_EXIT, "hangs"])
def test_the_agents_end_fails_at_most_the_next_container_without_a_share(
    bare_lab: Lab, title: str
) -> None:
    """docs/failures.md has the counts on each containerd."""
    bare_lab.stop_agent(signal.SIGKILL)
    harm = bystanders.measure(bare_lab, 1, [title])[title]
    assert harm.created > 1 and harm.later == 0
    assert harm.failed <= bystanders.failing(bare_lab.release, title), harm.texts


def test_without_the_agent_there_is_no_gpu(bare_lab: Lab) -> None:
    """Nothing requires the agent in a pod of Koordinator's: it runs, and has no GPU."""
    bare_lab.stop_agent()
    with bare_lab.pod("koordinator", bare_lab.allocated([(0, HALF, 50)])) as pod:
        container = pod.run("main", OWN)
        assert not probe(container).driver
        assert container.exec(["ls", "/dev/simgpu"]).code != 0


def test_a_container_that_starts_while_the_agent_is_away_has_its_limit(lab: Lab) -> None:
    """Its limit came with the adjustment; only the check of the image is missed, as its preload
    shows."""
    with lab.pod("made", lab.share({"main": [(0, HALF, 50)]})) as pod:
        container = pod.create("main", Process(PRELOAD_IMAGE))
        lab.stop_agent()
        container.start()
        assert probe(container).held_to(HALF)
        assert OWN_PRELOAD not in container.exec(["cat", names.CONTAINER_PRELOAD]).out
        lab.start_agent()
        lab.wait_until(lambda: said(lab, "limit in place", container), "the proof")


def test_a_limit_that_was_hidden_while_the_agent_was_away_is_named(
    lab: Lab, half: Container, tmp_path: Path
) -> None:
    """No agent checked it before it started: it runs with its own forged grant, and is reported."""
    (tmp_path / "grant").write_bytes(b"")
    volume = {LINKED_VOLUME: tmp_path / "grant"}
    quarter = lab.share({"main": [(0, HALF // 2, 25)]})
    with lab.pod("hidden", quarter) as hidden, lab.pod("strong", quarter) as strong:
        containers = [
            hidden.create("main", Process(LINKED_VOLUME_IMAGE, mounts=volume)),
            strong.create("main", Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"])),
        ]
        lab.stop_agent()
        for container in containers:
            container.start()
        lab.start_agent()
        for container in containers:
            named = partial(said, lab, "limit not in place", container)
            lab.wait_until(named, "it to be named")
        lab.wait_until(lambda: said(lab, "limit in place", half), "the other's proof")
        assert not said(lab, "limit not in place", half)
