"""Disables the admission of pods for a trial, as docs/requests.md describes: no pod is refused."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.server import MERGE_PATCH, Server
from tests.requests.pods import asking, pod
from tests.support import until

_BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_OPENED: Final = ("gpuslice-allocations", "gpuslice-scheduler-names")


@contextmanager
def opened(plane: ControlPlane) -> Iterator[None]:
    """Every account may write allocations, and name a node."""
    namespace = f"trial-{secrets.token_hex(4)}"
    plane.kubectl("create", "namespace", namespace)
    try:
        _act(plane, namespace, ["Warn", "Audit"], [True, True])
        yield
    finally:
        _act(plane, namespace, ["Deny"], [False, False])
        plane.remove_namespace(namespace)


def _act(plane: ControlPlane, namespace: str, actions: list[str], passes: list[bool]) -> None:
    with Server(plane) as server:
        for name in _OPENED:
            change = {"spec": {"validationActions": actions}}
            assert server.ask("PATCH", f"{_BINDINGS}/{name}", change, MERGE_PATCH).done
        until(lambda: _lets_through(server, namespace) == passes, f"{actions} are in force")


def _lets_through(server: Server, namespace: str) -> list[bool]:
    half = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}
    tried: list[tuple[dict[str, str], str]] = [
        ({names.ANNOTATION_REQUIRED_PLUGINS: '["gpuslice", "other"]'}, names.SCHEDULER_NAME),
        ({}, "default-scheduler"),
    ]
    answers = []
    for written, scheduler in tried:
        asked = pod(asking(half), scheduler=scheduler, name="trial", annotations=written)
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        answers.append(server.ask("POST", path, asked).done)
    return answers
