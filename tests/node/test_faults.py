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
from nri_plugin.messages import nri_pb2 as nri

from .scene import HALF, OWN, QUARTER, get, one, plugin, probe, said, sample

pytestmark = pytest.mark.node

LABELS = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
MALFORMED = (
    '{"gpu":[{"minor":0,"id":"GPU-5e1f0a70-0000-4000-8000-000000000000","resources":'
    f'{{"{names.RESOURCE_MEMORY}":"12 potatoes"}}}}]}}'
)


def test_a_malformed_annotation_is_refused_with_its_reason(lab: Lab) -> None:
    refused = pytest.raises(CriError, match=r"gpuslice refuses .*12 potatoes")
    written = {names.ANNOTATION_DEVICE_ALLOCATED: MALFORMED}
    with lab.pod("malformed", written, LABELS) as pod, refused:
        pod.create("main", OWN)


def take_the_variable_over(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """Claim the variable, with the value that the agent set."""
    for line in container.env:
        key, _, value = line.partition("=")
        if key == names.ENV_VISIBLE_DEVICES:
            adjustment.env.add(key=f"-{key}")
            adjustment.env.add(key=key, value=value)


def test_a_container_with_a_share_stays_as_we_made_it(lab: Lab) -> None:
    with (
        plugin(lab, take_the_variable_over),
        lab.pod("ours", one(lab)) as pod,
        pytest.raises(CriError, match="NVIDIA_VISIBLE_DEVICES was set by 60-other"),
    ):
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
    with lab.pod("made", one(lab)) as pod:
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
    quarter = one(lab, QUARTER, core=25)
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


def test_readiness_follows_the_session(lab: Lab) -> None:
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")
    sessions = sample(lab, "gpuslice_nri_sessions_total")
    lab.containerd.stop()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 503, "the agent to see that containerd went")
    lab.wait_until(lambda: "no process listens" in get(lab, "/readyz")[1], "the reason")
    assert get(lab, "/healthz") == (200, "ok\n")
    assert sample(lab, "gpuslice_nri_session_up") == 0
    lab.containerd.start()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 200, "the agent to register again")
    lab.cri.version()
    assert sample(lab, "gpuslice_nri_sessions_total") == sessions + 1
    assert sample(lab, 'gpuslice_nri_reconnects_total{cause="ended"}') >= 1
