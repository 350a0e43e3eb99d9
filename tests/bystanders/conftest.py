"""A cluster in which Koordinator runs, with gpuslice installed, and pods that kubectl makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.node.catalogue import PYTHON_IMAGE
from tests.bystanders.pods import BYSTANDERS, DEBUG_PROFILES
from tests.cluster.installing import install
from tests.cluster.server import Server
from tests.node.kubelet import Json

NODE: Final = "n1"
_GROUP: Final = names.DEVICE_API_VERSION.partition("/")[0]
_SCHEMA: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
KOORDINATORS_KIND: Final[Json] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"{names.DEVICE_PLURAL}.{_GROUP}",
        "annotations": {"controller-gen.kubebuilder.io/version": "v0.16.5"},
    },
    "spec": {
        "group": _GROUP,
        "scope": "Cluster",
        "names": {"kind": "Device", "plural": names.DEVICE_PLURAL, "singular": "device"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _SCHEMA},
            }
        ],
    },
}
"""Koordinator's own definition differs from ours, so that a replacement would be noticed."""
ACCOUNT: Final = "system:serviceaccount:koordinator-system:koord-scheduler"
_RBAC: Final = "rbac.authorization.k8s.io"
_ROLE: Final[Json] = {
    "apiVersion": f"{_RBAC}/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "koord-scheduler-role"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch", "update"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    ],
}
_SUBJECT: Final = {"name": "koord-scheduler", "namespace": "koordinator-system"}
_GRANTED: Final[Json] = {
    "apiVersion": f"{_RBAC}/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "koord-scheduler-rolebinding"},
    "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _ROLE["metadata"]["name"]},
    "subjects": [{"kind": "ServiceAccount", **_SUBJECT}],
}
"""The ClusterRoleBinding in Koordinator's chart."""


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a cluster with Koordinator's definition and rights, then install gpuslice."""
    with ControlPlane(tmp_path_factory.mktemp("bystanders")) as started:
        spaces = {raw["metadata"]["namespace"] for raw in BYSTANDERS.values()} - {"default"}
        named = ({"name": each} for each in sorted({*spaces, _SUBJECT["namespace"]}))
        made = ({"apiVersion": "v1", "kind": "Namespace", "metadata": each} for each in named)
        started.apply_json(*made, KOORDINATORS_KIND, _ROLE, _GRANTED)
        with Server(started) as server:
            assert server.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}}).done
        install(started)
        yield started


@pytest.fixture(scope="session")
def bystanders(plane: ControlPlane) -> dict[str, Json]:
    """Return pods that request no share, by their row in docs/failures.md."""
    made = {
        f"kubectl debug node, {profile}": debugger(plane, profile) for profile in DEBUG_PROFILES
    }
    return {**BYSTANDERS, **made}


def debugger(plane: ControlPlane, profile: str) -> Json:
    """The pod of `kubectl debug node/n1`, as the API server has stored it."""
    command = ("debug", f"node/{NODE}", f"--image={PYTHON_IMAGE}", f"--profile={profile}")
    plane.kubectl(*command, "--", "sleep", "infinity")
    listed = json.loads(plane.kubectl("get", "pods", "-o=json"))["items"]
    named = (each for each in listed if each["metadata"]["name"].startswith("node-debugger-n1"))
    made: Json = next(named)
    plane.remove_pods("default")
    return made
