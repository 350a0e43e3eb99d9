"""The rights of gpuslice-viewer suffice for `top` and `explain`. There is no kubelet: a permitted
connection to an agent fails with another error than a missing right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from gpuslice.cli import explain
from gpuslice.cli.live import Reader
from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.server import Server

pytestmark = pytest.mark.cluster

_VIEWER = "gpuslice-viewer"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PODS = f"/api/v1/namespaces/{names.NAMESPACE}/pods"
_AGENT = {
    "metadata": {"name": "agent", "labels": {names.LABEL_NAME: names.AGENT}},
    "spec": {
        "nodeName": "viewer-0000",
        "automountServiceAccountToken": False,
        "containers": [
            {"name": "agent", "image": "none", "ports": [{"name": "http", "containerPort": 10275}]}
        ],
    },
}


@pytest.fixture
def node(installed: ControlPlane, server: Server) -> Iterator[str]:
    """A node with a running agent's pod."""
    (made,) = Shape(1, 2, prefix="viewer-").all_nodes()
    with Fleet(installed, [made]), server.made(_PODS, _AGENT) as path:
        running = '{"status":{"phase":"Running"}}'
        where = ("pod/agent", f"--namespace={names.NAMESPACE}", "--subresource=status")
        installed.kubectl("patch", *where, "--type=merge", f"--patch={running}")
        assert server.get(path)["status"]["phase"] == "Running"
        yield made.name


def _bound(server: Server, stack: ExitStack, *, role: bool) -> None:
    """Bind the ClusterRole, and the Role too, to the user `tenant`."""
    scopes = {"ClusterRole": f"{_RBAC}/clusterrolebindings"}
    if role:
        scopes["Role"] = f"{_RBAC}/namespaces/{names.NAMESPACE}/rolebindings"
    for kind, path in scopes.items():
        to = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": _VIEWER}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}
        raw = {"metadata": {"name": "viewer-test"}, "roleRef": to, "subjects": [subject]}
        stack.enter_context(server.made(path, raw))


def _read(installed: ControlPlane, node: str) -> Mapping[str, str]:
    """Return the notices of `top`, which must show the node, for the user `tenant`."""

    async def run() -> Mapping[str, str]:
        async with Kube(access.load(str(installed.kubeconfig("tenant")))) as kube:
            reader = Reader(kube)
            shown = [each for each in (await reader.grants()).nodes if each.name == node]
            assert [each.agent is not None for each in shown] == [True]
            assert not await reader.use(shown)
            facts = await explain.read(kube, names.NAMESPACE, "agent", time.time())
            assert facts.pod is not None
            return {**reader.notices, "explain": ", ".join(facts.missing)}

    return asyncio.run(run())


def test_the_roles_suffice_and_without_the_role_one_line_names_the_right(
    installed: ControlPlane, server: Server, node: str
) -> None:
    with pytest.raises(KubeError, match="forbidden"):
        _read(installed, node)
    with ExitStack() as stack:
        _bound(server, stack, role=False)
        notices = _read(installed, node)
        assert "needs get, create pods/portforward" in notices["use"]
        rights = ("list leases", "get and create pods/portforward")
        assert notices["explain"] == ", ".join(f"{e} in namespace gpuslice-system" for e in rights)
    with ExitStack() as stack:
        _bound(server, stack, role=True)
        notices = _read(installed, node)
        assert not {"use", "claims"} & notices.keys() and "agents" in notices
        assert notices["explain"] == ""
