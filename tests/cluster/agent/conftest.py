"""Fixtures: `server` is the API server as the cluster's administrator sees it, `side` the agent's
client, which runs for `node` with the GPUs of `host`. `pods` creates and binds pods."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.agent import side as agent_side
from tests.cluster.agent.node import Node, Pods
from tests.cluster.agent.side import Side
from tests.cluster.server import Server
from tests.simgpu.host import GIB, Host


@pytest.fixture
def server(installed: ControlPlane) -> Iterator[Server]:
    with Server(installed) as admin:
        yield admin


@pytest.fixture
def host(build_dir: Path, tmp_path: Path) -> Iterator[Host]:
    """Start a simulated host with two GPUs, of 8 and of 4 GiB."""
    host = Host(tmp_path / "sim", ("--gpu", str(8 * GIB), "--gpu", str(4 * GIB)), build_dir)
    host.up()
    yield host
    host.down()


@pytest.fixture
def node(installed: ControlPlane, server: Server) -> Iterator[Node]:
    node = Node(server, f"n-{secrets.token_hex(4)}")
    node.make()
    yield node
    with Server(installed) as admin:
        for path in (node.path, node.device_path, node.lease_path):
            admin.remove(path)


@pytest.fixture
def account(installed: ControlPlane, node: Node) -> Path:
    return installed.service_account_kubeconfig(names.NAMESPACE, names.AGENT, node.name)


@pytest.fixture
def side(account: Path, node: Node, host: Host) -> Iterator[Side]:
    with agent_side.serving(node.name, account, host.env()) as side:
        yield side


@pytest.fixture
def pods(installed: ControlPlane, server: Server) -> Iterator[Pods]:
    name = f"test-{secrets.token_hex(4)}"
    installed.kubectl("create", "namespace", name)
    with Server(installed, "scheduler") as scheduler:
        yield Pods(server, scheduler, name)
    installed.remove_namespace(name)
