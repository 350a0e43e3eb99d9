"""The scheduler's writes to a pod, a nomination and a Binding, as a real API server takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from kube import access
from kube.client import MERGE_PATCH, Kube
from kube.errors import KubeError
from lab.cluster.controlplane import ControlPlane
from scheduler.kubernetes import binding
from scheduler.kubernetes.waiting import Waiting, nomination, waiting
from scheduler.nominator import NOMINATES
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

    async def waiting(self) -> Waiting:
        return waiting(await self.read())

    async def nominate(self, body: Any, **how: str) -> Json:
        path = f"{self._pods}/p/status"
        answer: Json = await self._kube.patch(
            path, body, timeout_s=_ANSWER_S, **{**NOMINATES, **how}
        )
        return answer

    async def bind(self, seen: Waiting, **more: Any) -> None:
        uid, version = seen.pending.uid, seen.pending.version
        body = binding.binding(self._namespace, "p", uid, _NODE, _ANNOTATIONS, "a-writer", version)
        path = f"{self._pods}/p/binding"
        await self._kube.post(path, {**body, **more}, timeout_s=_ANSWER_S, **_STRICT)


def play(plane: ControlPlane, namespace: str, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Kube(access.load(str(plane.kubeconfig("admin")))) as kube:
            scene = Scene(kube, namespace)
            await scene.make()
            await act(scene)
        await asyncio.sleep(_GOODBYE_S)

    asyncio.run(run())


def test_a_nomination_is_written_replaced_and_withdrawn(
    control_plane: ControlPlane, namespace: str
) -> None:
    """The answer has the pod's new version, for the next write, and not the pod."""

    async def act(scene: Scene) -> None:
        for node in ("n1", "n2", None, "n3", None):
            before = await scene.waiting()
            answer = await scene.nominate(nomination(before.pending, node))
            raw = await scene.read()
            after = waiting(raw)
            assert (after.nominated, after.is_ours) == (node or "", node is not None)
            assert ("nominatedNodeName" in raw["status"]) == (node is not None)
            assert answer["metadata"]["resourceVersion"] == after.pending.version
            assert after.pending.version != before.pending.version
            assert answer["kind"] == "PartialObjectMetadata" and "spec" not in answer
            assert raw["status"]["phase"] == "Pending" and raw["status"]["qosClass"]

    play(control_plane, namespace, act)


@pytest.mark.parametrize("how", [{}, {"kind": MERGE_PATCH}], ids=["strategic", "merge"])
@pytest.mark.parametrize("node", ["n2", None])
def test_a_nomination_of_a_pod_that_has_changed_or_is_another_is_refused(
    node: str | None, how: dict[str, str], control_plane: ControlPlane, namespace: str
) -> None:
    async def act(scene: Scene) -> None:
        old = (await scene.waiting()).pending
        await scene.nominate(nomination(old, "n1"))
        now = (await scene.waiting()).pending
        uid = "6e1a4e1c-0000-4000-8000-000000000000"
        refused = (
            (old, 409),
            (replace(old, uid=uid), 409),
            (replace(now, uid=uid), 422),
        )
        for pending, status in refused:
            with pytest.raises(KubeError) as raised:
                await scene.nominate(nomination(pending, node), **how)
            assert raised.value.status == status
        after = await scene.waiting()
        assert (after.nominated, after.pending.version) == ("n1", now.version)

    play(control_plane, namespace, act)


def test_neither_body_has_a_field_that_the_server_does_not_have(
    control_plane: ControlPlane, namespace: str
) -> None:
    """So the server need not look for one: `fieldValidation=Ignore`."""

    async def act(scene: Scene) -> None:
        body = nomination((await scene.waiting()).pending, "n1")
        unknown = {**body, "status": {"nominatedNode": "n1"}}
        with pytest.raises(KubeError, match="nominatedNode"):
            await scene.nominate(unknown, **_STRICT)
        for node in ("n1", None, "n1"):
            pending = (await scene.waiting()).pending
            await scene.nominate(nomination(pending, node), **_STRICT)
        seen = await scene.waiting()
        with pytest.raises(KubeError, match="unknown"):
            await scene.bind(seen, unknown={})
        await scene.bind(seen)
        raw = await scene.read()
        assert raw["spec"]["nodeName"] == _NODE
        assert _ANNOTATIONS.items() <= raw["metadata"]["annotations"].items()

    play(control_plane, namespace, act)
