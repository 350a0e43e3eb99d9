"""The scheduler's writes to a pod, as a real API server takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.kube import access
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from lab.cluster.controlplane import ControlPlane
from scheduler.decisions.sampling import Requeue
from scheduler.kubernetes import binding
from scheduler.kubernetes.requests import Pending, pending
from scheduler.requeuer import requeueing
from tests.cluster.admission.requested import HALF, asking, pod
from tests.scheduler.kubernetes.test_binding import PLACEMENT

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

_STRICT: Final = {"fieldValidation": "Strict"}
_NODE: Final = "n1"
_ANNOTATIONS: Final = binding.annotations_of(PLACEMENT)
_ANSWER_S: Final = 60.0
_GOODBYE_S: Final = 0.25
"""aiohttp does not wait for the end of TLS connections."""


class Scene:
    """One pending pod."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def make(self) -> None:
        await self._kube.post(self._pods, pod(asking(HALF)))

    async def read(self) -> Json:
        found: Json = await self._kube.get(f"{self._pods}/p")
        return found

    async def requeue(self, seen: Pending, nominated: str | None) -> None:
        body = requeueing(Requeue(seen, nominated))
        await self._kube.patch(f"{seen.path}/status", body, timeout_s=_ANSWER_S, **_STRICT)

    async def bind(self, seen: Pending, **more: Any) -> None:
        arguments = (self._namespace, "p", seen.uid, _NODE, _ANNOTATIONS, "a-writer", seen.version)
        body = {**binding.binding(*arguments), **more}
        await self._kube.post(f"{seen.path}/binding", body, timeout_s=_ANSWER_S, **_STRICT)


def play(plane: ControlPlane, namespace: str, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Kube(access.load(str(plane.kubeconfig("admin")))) as kube:
            scene = Scene(kube, namespace)
            await scene.make()
            await act(scene)
        await asyncio.sleep(_GOODBYE_S)

    asyncio.run(run())


def test_a_requeued_pod_has_the_node_nominated(control_plane: ControlPlane, namespace: str) -> None:
    """Each write changes the pod, or kube-scheduler would not retry it."""

    async def act(scene: Scene) -> None:
        for nominated in ("n1", "n2", None, "", None):
            before = pending(await scene.read())
            await asyncio.sleep(0.002)
            await scene.requeue(before, nominated)
            raw = await scene.read()
            after = pending(raw)
            assert after.nominated == (before.nominated if nominated is None else nominated)
            assert after.version != before.version
            assert raw["metadata"]["annotations"].keys() == {names.ANNOTATION_REQUEUED_AT}

    play(control_plane, namespace, act)


def test_another_pod_and_a_bound_pod_are_not_requeued(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def act(scene: Scene) -> None:
        seen = pending(await scene.read())
        with pytest.raises(KubeError) as raised:
            await scene.requeue(replace(seen, uid="6e1a4e1c-0000-4000-8000-000000000000"), "n1")
        assert raised.value.status == 422
        await scene.bind(seen)
        with pytest.raises(KubeError) as raised:
            await scene.requeue(seen, "n2")
        assert raised.value.status == 422

    play(control_plane, namespace, act)


def test_the_binding_has_no_field_that_the_server_does_not_have(
    control_plane: ControlPlane, namespace: str
) -> None:
    """So the server need not look for one: `fieldValidation=Ignore`."""

    async def act(scene: Scene) -> None:
        seen = pending(await scene.read())
        with pytest.raises(KubeError, match="unknown"):
            await scene.bind(seen, unknown={})
        await scene.bind(seen)
        raw = await scene.read()
        assert raw["spec"]["nodeName"] == _NODE
        assert _ANNOTATIONS.items() <= raw["metadata"]["annotations"].items()

    play(control_plane, namespace, act)
