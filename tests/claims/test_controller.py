"""When templates are made, made again and removed. Time passes only by `now_s`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.fleet_objects import Gpu, Node, slice_json
from scheduler.claims.controller import Templates
from tests.kube.api_server import client_of
from tests.queues.api import Api
from tests.support import until_async

Json = dict[str, Any]
_API: Final = "/apis/resource.k8s.io/v1"
_NAME: Final = "gpuslice-c50-r50"
_TEMPLATE: Final = f"{_API}/namespaces/team/resourceclaimtemplates/{_NAME}"
_POD: Final = "/api/v1/namespaces/team/pods/p"


class Scene:
    def __init__(self) -> None:
        self.api, self.now_s = Api(), 0.0
        self.gpu("small", 24 << 30)

    def gpu(self, node: str, size: int) -> None:
        raw = slice_json(Node(node, (Gpu(f"GPU-{node}", 0, size),)))
        self.api.put(f"{_API}/resourceslices/{raw['metadata']['name']}", raw)

    def pod(self, phase: str = "Pending") -> None:
        metadata = {
            "name": "p",
            "namespace": "team",
            "labels": {names.LABEL_CLAIM_TEMPLATE: "true"},
        }
        claims = [{"name": "gpuslice-main", "resourceClaimTemplateName": _NAME}]
        raw = {"metadata": metadata, "spec": {"resourceClaims": claims}, "status": {"phase": phase}}
        self.api.put(_POD, raw)

    def alternatives(self) -> list[str]:
        devices = self.api.objects[_TEMPLATE]["spec"]["spec"]["devices"]
        return [each["name"] for each in devices["requests"][0]["firstAvailable"]]

    async def until(self, there: bool) -> None:
        await until_async(lambda: (_TEMPLATE in self.api.objects) == there)


@asynccontextmanager
async def _running() -> AsyncIterator[Scene]:
    scene = Scene()
    async with client_of(scene.api.answer) as kube:
        running = asyncio.create_task(Templates(kube, lambda: scene.now_s).run())
        try:
            yield scene
        finally:
            running.cancel()
            await asyncio.wait([running])


@pytest.fixture
def scene() -> Any:
    return _running()


async def test_a_template_lives_while_pods_name_it_and_a_minute_longer(scene: Scene) -> None:
    scene.pod()
    await scene.until(True)
    scene.now_s = 1000.0
    await asyncio.sleep(1.0)
    assert _TEMPLATE in scene.api.objects
    scene.pod("Succeeded")
    await asyncio.sleep(1.0)
    scene.now_s = 1059.0
    await asyncio.sleep(1.0)
    assert _TEMPLATE in scene.api.objects
    scene.now_s = 1061.0
    await scene.until(False)


async def test_a_new_size_renews_the_template(scene: Scene) -> None:
    scene.pod()
    await scene.until(True)
    scene.now_s += 11.0
    scene.gpu("large", 80 << 30)
    await until_async(
        lambda: _TEMPLATE in scene.api.objects and scene.alternatives() == ["m24576", "m81920"]
    )


async def test_without_a_gpu_and_after_a_refusal_it_waits(scene: Scene) -> None:
    slices = [path for path in scene.api.objects if "resourceslices" in path]
    scene.api.remove(slices[0])
    scene.pod()
    collection = _TEMPLATE.rpartition("/")[0]
    scene.api.refused[collection] = 403
    await asyncio.sleep(1.0)
    scene.gpu("small", 24 << 30)
    await asyncio.sleep(1.0)
    del scene.api.refused[collection]
    scene.now_s += 11.0
    await scene.until(True)
