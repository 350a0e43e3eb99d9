"""The agent's API server client, killed in the middle of each of its writes and at random moments:
the next one continues, nothing is written twice, and no valid grant is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import KOORDINATOR
from lab.cluster.controlplane import ControlPlane
from nri_plugin.kube import verification
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from tests.cluster.agent import side as agent_side
from tests.cluster.agent.killed import ABSENT_S, WHEN, WRITES, said
from tests.cluster.agent.node import (
    DEVICES,
    Node,
    Pods,
    account,
    events,
    host,
    leaving,
    node,
    node_events,
    of_gpus,
    of_pod,
    pods,
    server,
    small_gpu,
)
from tests.cluster.server import MERGE_PATCH, Server
from tests.simgpu.host import GIB, Host
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.sim]

__all__ = ["account", "host", "node", "pods", "server"]

_RANDOM_RUNS = 5
_LONGEST_RUN_S = 3.0


@dataclass
class World:
    """The conditions of one run of the agent: each time everything remains to be written."""

    node: Node
    server: Server
    pods: Pods
    account: Path
    host: Host
    uuid: str
    honest: str
    late: list[str] = field(default_factory=list)
    greedy: list[str] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)

    def disturb(self) -> None:
        number = len(self.late)
        self.server.ask("DELETE", f"{DEVICES}/{self.node.name}")
        zeros = {"status": {"capacity": dict.fromkeys(KOORDINATOR.node_resources, "0")}}
        assert self.server.ask("PATCH", f"{self.node.path}/status", zeros, MERGE_PATCH).done
        label = {"metadata": {"labels": {names.LABEL_ISOLATION_PROVIDER: None}}}
        assert self.server.ask("PATCH", self.node.path, label, MERGE_PATCH).done
        late = self.pods.bind(self.node, self.uuid, 1, 2 * GIB, core=1)
        greedy = self.pods.bind(self.node, self.uuid, 1, 1 << 20, core=1)
        self.late.append(late)
        self.greedy.append(greedy)
        self.holds.append(of_pod(self.server, late, self.uuid, 2 * GIB, f"late-{number}"))
        self.holds.append(of_pod(self.server, greedy, self.uuid, GIB, f"greedy-{number}"))
        unknown = Pod(f"unknown-{number}", "default", f"unknown-{number}")
        share = [Share(self.uuid, 1, GIB, 50)]
        self.holds.append(ledger.hold(f"c-{number}", "c", False, unknown, "main", share))

    def run(self, *fate: str, seconds: float | None = None) -> None:
        """Runs until killed, by the given fate or after this number of seconds."""
        command = [sys.executable, "-m", "tests.cluster.agent.killed", self.node.name]
        options = [str(self.account), said(self.holds), *fate]
        environment = {**os.environ, **self.host.env()}
        with subprocess.Popen(
            [*command, *options], env=environment, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                assert child.stdout is not None and child.stdout.readline() == "up\n"
                if seconds is not None:
                    time.sleep(seconds)
                    child.kill()
                assert child.wait(timeout=120) == -signal.SIGKILL
            finally:
                child.kill()

    def is_sound(self) -> None:
        """Invariants at any time, after any kill."""
        assert not leaving(self.server, self.honest)
        assert events(self.server, self.honest) == []
        for path in (*self.late, *self.greedy):
            assert len(events(self.server, path)) <= 1
            assert not leaving(self.server, path)

    def is_whole(self) -> None:
        """Conditions once an agent has run for long enough."""
        until(lambda: self.node.ready() == "true", "the Lease")
        for path in (*self.late, *self.greedy):
            until(lambda path=path: bool(events(self.server, path)), f"{path} is reported")  # type: ignore[misc]
        of_unknown = [hold.pod.name for hold in self.holds if hold.pod.name.startswith("unknown")]

        def reported() -> list[str]:
            return sorted(e["related"]["name"] for e in node_events(self.server, self.node))

        until(lambda: reported() == sorted(of_unknown), "each is reported once")
        self.is_sound()
        # While they exist, no total is below their requests.
        for path in (*self.late, *self.greedy):
            assert self.server.ask("DELETE", f"{path}?gracePeriodSeconds=0").done
        self.node.have(of_gpus(8 * GIB, 4 * GIB))
        listed = self.node.device()["spec"]["devices"]
        assert sorted(each["minor"] for each in listed) == [0, 1]


@pytest.fixture
def world(
    node: Node,
    server: Server,
    pods: Pods,
    account: Path,
    host: Host,
    installed: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    monkeypatch.setattr(verification, "ABSENT_S", ABSENT_S)
    with agent_side.serving(node.name, account, host.env()):
        uuid = small_gpu(node)
        honest = pods.bind(node, uuid, 1, 3 * GIB)
        until(lambda: bool(node.ready()), "the Lease")
    held = of_pod(server, honest, uuid, 3 * GIB, "honest")
    return World(node, server, pods, account, host, uuid, honest, holds=[held])


def test_killed_in_each_of_its_writes(world: World) -> None:
    for what in WRITES:
        for when in WHEN:
            world.disturb()
            world.run("--at", what, "--when", when)
            world.is_sound()
    with agent_side.serving(world.node.name, world.account, world.host.env()) as side:
        side.holds = tuple(world.holds)
        world.is_whole()


@pytest.mark.e2e
def test_killed_at_any_moment(world: World) -> None:
    runs_s = [random.uniform(0, _LONGEST_RUN_S) for _ in range(_RANDOM_RUNS)]
    for run_s in runs_s:
        world.disturb()
        world.run(seconds=run_s)
        world.is_sound()
    with agent_side.serving(world.node.name, world.account, world.host.env()) as side:
        side.holds = tuple(world.holds)
        world.is_whole()
