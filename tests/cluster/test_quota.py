"""The example of a namespace's quota."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuslice.contract import dialects, names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.server import Server
from tests.requests.pods import Json, asking, pod
from tests.support import ROOT, until

pytestmark = pytest.mark.cluster

_FILE = str(ROOT / "docs/examples/quota.yaml")
_PODS = "/api/v1/namespaces/team-a/pods"


@pytest.fixture
def server(control_plane: ControlPlane) -> Iterator[Server]:
    """The policy is in force, and the quota's status is that of kube-controller-manager."""
    control_plane.kubectl("apply", "-f", _FILE)
    control_plane.kubectl("create", "serviceaccount", "default", "-n", "team-a")
    quota = json.loads(control_plane.kubectl("get", "quota", "gpus", "-n", "team-a", "-o=json"))
    hard = quota["spec"]["hard"]
    status = json.dumps({"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    words = ("patch", "quota", "gpus", "-n", "team-a", "--subresource=status")
    control_plane.kubectl(*words, f"--patch={status}")
    with Server(control_plane) as made:
        until(
            lambda: "quota" in _answer(made, _share(names.RESOURCE_CORE)), "the quota is in force"
        )
        until(lambda: "quota" in _answer(made, _kai()), "the policy is in force")
        yield made
    control_plane.kubectl("delete", "-f", _FILE, "--wait=false")


def _kai() -> Json:
    return pod(annotations={dialects.KAI_FRACTION: "0.5"}, name="kai")


def _share(resource: str, percent: int = 50) -> Json:
    return pod(asking({resource: percent}), name="share")


def _answer(server: Server, made: Json) -> str:
    return server.ask("POST", f"{_PODS}?dryRun=All", made).text


def test_a_quota_of_all_names_bounds_a_namespace(server: Server) -> None:
    """Two GPUs by one name. Each other name is refused, and so are KAI's annotations."""
    for resource in dialects.KOORDINATOR.resources:
        said = _answer(server, _share(resource))
        allowed = resource == names.RESOURCE_GPU
        assert allowed != ("exceeded quota: gpus" in said), said
    assert "exceeded quota" in _answer(server, _share(names.RESOURCE_GPU, 201))
    assert "must not request a GPU" in _answer(server, _kai())
    assert "exceeded" not in _answer(server, pod(name="plain"))
