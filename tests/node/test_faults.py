"""Faults of a node: none lets a container run without its limit."""

from __future__ import annotations

import re
import signal
import tomllib
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
from tests.node.table import DOCUMENT

from .scene import HALF, OWN, QUARTER, Files, get, lab_of, one, plugin, probe, said, sample

pytestmark = pytest.mark.node


def take_the_variable_over(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """Set NVIDIA_VISIBLE_DEVICES again, which the agent has set, to the same value."""
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
    """docs/failures.md has the number of failures on each containerd."""
    bare_lab.stop_agent(signal.SIGKILL)
    harm = bystanders.measure(bare_lab, 1, [title])[title]
    assert harm.created > 1 and harm.later == 0
    assert harm.failed <= bystanders.failing(bare_lab.release, title), harm.texts


def test_without_the_agent_there_is_no_gpu(bare_lab: Lab) -> None:
    """No validator requires the agent for Koordinator's pods. The container runs without a GPU."""
    bare_lab.stop_agent()
    with bare_lab.pod("koordinator", bare_lab.allocated([(0, HALF, 50)])) as pod:
        container = pod.run("main", OWN)
        assert not probe(container).driver
        assert container.exec(["ls", "/dev/simgpu"]).code != 0


def test_a_container_that_starts_while_the_agent_is_away_has_its_limit(lab: Lab) -> None:
    """The adjustment at the creation has put the limit in place. Only the agent's check at the
    start is missing. It would have added the image's own libraries to the preload file."""
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
    """No agent checked these containers before their start. The next agent reports them."""
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


TOLERATES = {names.ANNOTATION_TOLERATES_MISSING_AGENT: "true"}


def test_a_node_that_requires_the_agent_boots_by_its_exemptions(test_programs: Files) -> None:
    """containerd with the document's own configuration requires the agent for every container."""
    (block,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    ((_, section),) = tomllib.loads(block)["plugins"].items()
    chosen = section["default_validator"]
    assert chosen["enable"] is True
    with lab_of(
        files=test_programs,
        required_plugins=chosen["required_plugins"],
        toleration=chosen["tolerate_missing_plugins_annotation"],
    ) as lab:
        # The network, static pods and the agent itself are exempt, and may start first.
        with lab.pod("network", TOLERATES) as pod:
            assert pod.run("main", OWN).exec(["true"]).code == 0
        with lab.pod("web") as pod:
            with pytest.raises(CriError, match='required plugin "gpuslice" not present'):
                pod.create("main", OWN)
            lab.start_agent()
            assert pod.run("main", OWN).exec(["true"]).code == 0
        # A pod's author may write the exemption, too. Without the agent no GPU is injected.
        lab.stop_agent()
        held = {**lab.allocated([(0, HALF, 50)]), **TOLERATES}
        with lab.pod("forger", held) as pod:
            assert not probe(pod.run("main", OWN)).driver
