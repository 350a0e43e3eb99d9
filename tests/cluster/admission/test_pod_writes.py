"""A real API server accepts or refuses the scheduler's writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import RemoteDisconnected
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from scheduler.decisions.sampling import Requeue
from scheduler.kubernetes import binding
from scheduler.kubernetes.requests import Pending, pending
from scheduler.requeuer import requeueing
from tests.cluster.server import MERGE_PATCH, Answer, Json, Server
from tests.requests.pods import HALF, asking, pod
from tests.scheduler.kubernetes.test_binding import PLACEMENT

pytestmark = pytest.mark.cluster

_STRICT: Final = "?fieldValidation=Strict"
_ANNOTATIONS: Final = binding.annotations_of(PLACEMENT)


class Scene:
    def __init__(self, server: Server, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self._path = server.make(f"/api/v1/namespaces/{namespace}/pods", pod(asking(HALF)))

    def read(self) -> Json:
        return self._server.get(self._path)

    def requeue(self, seen: Pending, nominated: str | None) -> Answer:
        body = requeueing(Requeue(seen, nominated))
        return self._server.ask("PATCH", f"{self._path}/status{_STRICT}", body, MERGE_PATCH)

    def bind(self, seen: Pending, **more: Any) -> Answer:
        arguments = (self._namespace, "p", seen.uid, "n1", _ANNOTATIONS, "a-writer", seen.version)
        body = {**binding.binding(*arguments), **more}
        return self._server.ask("POST", f"{self._path}/binding{_STRICT}", body)


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str) -> Iterator[Scene]:
    with Server(control_plane) as server:
        yield Scene(server, namespace)


def test_a_requeued_pod_has_the_node_nominated(scene: Scene) -> None:
    """Each write must change the pod, because kube-scheduler does not retry an unchanged pod."""
    for nominated in ("n1", "n2", None, "", None):
        before = pending(scene.read())
        time.sleep(0.002)
        assert scene.requeue(before, nominated).done
        raw = scene.read()
        after = pending(raw)
        assert after.nominated == (before.nominated if nominated is None else nominated)
        assert after.version != before.version
        assert raw["metadata"]["annotations"].keys() == {names.ANNOTATION_REQUEUED_AT}


def test_another_pod_and_a_bound_pod_are_neither_requeued_nor_bound(scene: Scene) -> None:
    """The strict API server also finds no unknown field in the scheduler's Binding. So the
    scheduler may send Bindings with `fieldValidation=Ignore`."""
    seen = pending(scene.read())
    another = replace(seen, uid="6e1a4e1c-0000-4000-8000-000000000000")
    assert scene.requeue(another, "n1").status == 422
    assert scene.bind(another).status == 409
    assert "unknown" in scene.bind(seen, unknown={}).text
    assert scene.bind(seen).done
    raw = scene.read()
    assert raw["spec"]["nodeName"] == "n1"
    assert _ANNOTATIONS.items() <= raw["metadata"]["annotations"].items()
    assert scene.requeue(seen, "n2").status == 422
    assert scene.bind(seen).status == 409


def test_a_write_that_is_late_is_given_up_by_the_server(control_plane: ControlPlane) -> None:
    """The request's `timeout` parameter limits how long the server works on it (ADR 18)."""
    late = {"metadata": {"name": "late"}}
    # The server may drop the connection instead of answering.
    with Server(control_plane) as server, suppress(RemoteDisconnected):
        assert server.ask("POST", "/api/v1/namespaces?timeout=1us", late).status == 504
    with Server(control_plane) as server:
        assert server.ask("GET", "/api/v1/namespaces/late").status == 404
