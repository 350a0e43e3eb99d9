"""The kubelet's calls over real sockets: what is prepared, refused, awaited and left on disk."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import grpc.aio
import pytest

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from nri_plugin.claims import plugin, preparing
from nri_plugin.claims.plugin import KubeletPlugin
from nri_plugin.claims.preparing import Preparing
from nri_plugin.claims.store import ClaimStore, plugin_dir, store_of
from nri_plugin.containers.parts import Parts
from nri_plugin.messages import dra_pb2 as dra
from nri_plugin.messages import pluginregistration_pb2 as registration
from nri_plugin.policy import device_claims, ledger
from nri_plugin.policy.front_ends import FrontEnd, FrontEnds
from nri_plugin.policy.model import Pod, Share
from tests.nri_plugin.objects import parts, settings
from tests.nri_plugin.policy.test_device_claims import GIB, GPUS, NODE, claim, result
from tests.support import until_async

Answers = Mapping[str, Any]
"""The answers by the claims' UIDs."""


@dataclass
class Api:
    """The API server's claims by name. error: its answer to each request."""

    claims: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    error: KubeError | None = None

    async def get(self, path: str) -> Mapping[str, Any]:
        if self.error:
            raise self.error
        name = path.rpartition("/")[2]
        if name not in self.claims:
            raise KubeError(404, "NotFound", name)
        return self.claims[name]

    def add(self, name: str, *results: Any) -> dra.Claim:
        made = claim(f"uid-{name}", *results)
        self.claims[name] = {**made, "metadata": {**made["metadata"], "name": name}}
        return dra.Claim(namespace="default", uid=f"uid-{name}", name=name)


@dataclass
class Kubelet:
    """A kubelet, with the agent whose sockets are in its directory."""

    directory: Path
    agent: Parts
    api: Api
    store: ClaimStore

    async def call(self, socket: str, method: str, request: Any, response: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{self.directory / socket}") as channel:
            ask = channel.unary_unary(
                f"/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            return await ask(request, timeout=30)

    async def prepare(self, *wanted: dra.Claim) -> Answers:
        request = dra.NodePrepareResourcesRequest(claims=wanted)
        answer = dra.NodePrepareResourcesResponse
        return cast(Answers, (await self._dra("NodePrepareResources", request, answer)).claims)

    async def unprepare(self, *wanted: dra.Claim) -> Answers:
        request = dra.NodeUnprepareResourcesRequest(claims=wanted)
        answer = dra.NodeUnprepareResourcesResponse
        return cast(Answers, (await self._dra("NodeUnprepareResources", request, answer)).claims)

    async def _dra(self, method: str, request: Any, response: Any) -> Any:
        socket = f"plugins/{names.DRA_DRIVER}/dra.sock"
        return await self.call(socket, f"{plugin.SERVICE}/{method}", request, response)

    def specs(self) -> list[str]:
        """Return the names of all CDI devices on disk."""
        found = [json.loads(path.read_text()) for path in self.store.cdi_dir.glob("*.json")]
        return sorted(each["name"] for spec in found for each in spec["devices"])


def _made(place: Path) -> Kubelet:
    chosen = replace(settings(), run_dir=place / "run", kubelet_dir=place, node_name=NODE)
    agent = parts(chosen, claims=FrontEnds(FrontEnd.CLAIMS))
    agent.inventory.seen = GPUS
    agent.ledger.adopt((), ())
    agent.readiness.session = None
    return Kubelet(place, agent, Api(), ClaimStore(plugin_dir(place), place / "cdi"))


@asynccontextmanager
async def _serving() -> AsyncIterator[Kubelet]:
    with TemporaryDirectory(prefix="gs-", dir="/tmp") as name:  # sockets need a short path
        kubelet = _made(Path(name))
        kube = cast(Kube, kubelet.api)
        served = Preparing(kubelet.agent, kubelet.store, kube)
        async with KubeletPlugin(served, Path(name), lambda path: f"/host{path}").serving():
            yield kubelet


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(preparing, "_WAIT_S", 0.0)
    return _serving()


async def test_the_kubelet_finds_the_plugin(kubelet: Kubelet) -> None:
    socket = f"plugins_registry/{names.DRA_DRIVER}-reg.sock"
    ask = registration.InfoRequest()
    info = await kubelet.call(
        socket, f"{plugin.REGISTRATION}/GetInfo", ask, registration.PluginInfo
    )
    assert (info.type, info.name) == ("DRAPlugin", names.DRA_DRIVER)
    assert info.supported_versions == ["v1.DRAPlugin"]
    assert info.endpoint == f"/host{kubelet.directory}/plugins/{names.DRA_DRIVER}/dra.sock"


async def test_a_prepared_claim_has_a_cdi_device_per_share(kubelet: Kubelet) -> None:
    wanted = kubelet.api.add("c", result("gpu-a", "a" * 36), result("gpu-b", "b" * 36))
    first, again = await asyncio.gather(kubelet.prepare(wanted), kubelet.prepare(wanted))
    answer = first["uid-c"]
    assert answer == again["uid-c"]
    assert answer.error == ""
    assert [(d.device_name, d.share_id, d.pool_name) for d in answer.devices] == [
        ("gpu-a", "a" * 36, NODE),
        ("gpu-b", "b" * 36, NODE),
    ]
    listed = [each for device in answer.devices for each in device.cdi_device_ids]
    assert listed == [f"{names.CDI_KIND_CLAIM}={name}" for name in kubelet.specs()]
    assert kubelet.store.load() == kubelet.agent.claims.devices.prepared
    assert (await kubelet.unprepare(wanted, wanted))["uid-c"].error == ""
    assert kubelet.specs() == []
    assert kubelet.store.load() == {}


async def test_a_later_pod_of_a_named_claim_is_found_without_another_call(kubelet: Kubelet) -> None:
    """The kubelet asks to prepare a claim for its first pod only."""
    wanted = kubelet.api.add("c", result("gpu-a", "a" * 36))
    await kubelet.prepare(wanted)
    devices, late = kubelet.agent.claims.devices, ["pod-1", "pod-late"]
    cdi = [f"{names.CDI_KIND_CLAIM}={name}" for name in kubelet.specs()]
    (before,) = devices.of_others("pod-late", cdi)
    look_again = devices.look_again
    assert look_again is not None
    await look_again(before)
    assert devices.of_others("pod-late", cdi), "it is not reserved for the pod"
    kubelet.api.claims["c"]["status"]["reservedFor"].append({"uid": "pod-late"})
    await look_again(before)
    assert not devices.of_others("pod-late", cdi)
    assert [*devices.prepared["uid-c"].pods] == late
    assert kubelet.store.load() == devices.prepared
    await kubelet.unprepare(wanted)
    await look_again(before)
    assert not devices.prepared, "it stays unprepared"


def _of_another_uid(kubelet: Kubelet) -> None:
    kubelet.api.claims["c"]["metadata"]["uid"] = "uid-new"


def _not_allocated(kubelet: Kubelet) -> None:
    del kubelet.api.claims["c"]["status"]["allocation"]


def _of_another_node(kubelet: Kubelet) -> None:
    devices = kubelet.api.claims["c"]["status"]["allocation"]["devices"]
    devices["results"][0]["pool"] = "another"


def _held(kubelet: Kubelet) -> None:
    kubelet.api.claims.clear()
    key = ledger.claim_key(kubelet.specs())
    of = ledger.hold("c", key, Pod("pod-1", "default", "p"), "main", [])
    kubelet.agent.ledger.adopt([of], ())


def _unlisted(kubelet: Kubelet) -> None:
    kubelet.api.claims.clear()
    kubelet.agent.ledger.is_complete = False


def _unanswered(kubelet: Kubelet) -> None:
    kubelet.api.error = KubeError(500, "InternalError", "")


def _without_the_api(kubelet: Kubelet) -> None:
    kubelet.api.error = KubeError(404, "HTTP 404", "page not found")


@pytest.mark.parametrize(
    ("change", "is_lost"),
    [
        (lambda kubelet: kubelet.api.claims.clear(), True),
        (_of_another_uid, True),
        (_not_allocated, True),
        (_of_another_node, True),
        (lambda kubelet: None, False),
        (_held, False),
        (_unlisted, False),
        (_unanswered, False),
        (_without_the_api, False),
    ],
)
async def test_a_claim_that_the_node_has_lost_is_dropped(
    kubelet: Kubelet, change: Callable[[Kubelet], None], is_lost: bool
) -> None:
    """The kubelet does not unprepare it after it lost its checkpoint."""
    await kubelet.prepare(kubelet.api.add("c", result("gpu-a", "a" * 36)))
    change(kubelet)
    served = Preparing(kubelet.agent, kubelet.store, cast(Kube, kubelet.api))
    await served.drop_lost()
    left = [] if is_lost else ["uid-c"]
    assert [*kubelet.agent.claims.devices.prepared] == [*(kubelet.store.load() or ())] == left
    assert len(kubelet.specs()) == len(left)


def _no_session(kubelet: Kubelet) -> None:
    kubelet.agent.readiness.session = "containerd does not answer"


def _old_runtime(kubelet: Kubelet) -> None:
    kubelet.agent.readiness.claims = "claims need containerd 2.3"


def _annotations(kubelet: Kubelet) -> None:
    kubelet.agent.claims.now = FrontEnd.ANNOTATIONS


def _full(kubelet: Kubelet) -> None:
    share = Share("GPU-A", 0, 7 * GIB, 10)
    of = ledger.hold("c", "c", Pod("pod-0", "default", "old"), "main", [share])
    kubelet.agent.ledger.adopt([of], ())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_no_session, "containerd does not answer"),
        (_old_runtime, "claims need containerd 2.3"),
        (_annotations, "its front end is annotations"),
        (_full, "insufficient free capacity"),
        (lambda kubelet: kubelet.api.claims.clear(), "NotFound"),
    ],
)
async def test_nothing_is_prepared_that_would_run_without_its_limit(
    kubelet: Kubelet, change: Callable[[Kubelet], None], text: str
) -> None:
    wanted = kubelet.api.add("c", result("gpu-a", "a" * 36))
    change(kubelet)
    error = (await kubelet.prepare(wanted))["uid-c"].error
    assert text in error and error.startswith("gpuslice does not prepare claim c: ")
    assert kubelet.specs() == []
    assert not kubelet.agent.claims.devices.prepared


async def test_a_claim_waits_for_the_room_of_another(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "_WAIT_S", 30.0)
    old = kubelet.api.add("old", result("gpu-a", "a" * 36, "8Gi"))
    new = kubelet.api.add("new", result("gpu-a", "b" * 36, "8Gi"))
    await kubelet.prepare(old)
    waiting = asyncio.create_task(kubelet.prepare(new))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await kubelet.unprepare(old)
    assert (await waiting)["uid-new"].error == ""
    await until_async(lambda: kubelet.specs() == ["uid-new-bbbbbbbb"])


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_at_any_step_leaves_no_share_uncounted(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CDI device never exists without its record. The kubelet's next call completes the claim."""
    kubelet = _made(tmp_path)
    kubelet.api.add("c", result("gpu-a", "a" * 36))
    wanted = device_claims.allocated(kubelet.api.claims["c"], NODE)
    steps = iter(range(1, 9))
    keep = os.replace

    def killed(source: Any, target: Any) -> None:
        if next(steps) == step:
            raise KeyboardInterrupt
        keep(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        kubelet.store.put(wanted)
    monkeypatch.undo()
    assert [*(kubelet.store.load() or ())] == ["uid-c"] * (step - 1)
    assert kubelet.specs() == []
    kubelet.store.put(wanted)
    assert kubelet.store.load() == {"uid-c": wanted}
    assert kubelet.specs() == ["uid-c-aaaaaaaa"]


def test_a_record_that_cannot_be_read_ends_no_agent(tmp_path: Path) -> None:
    kubelet = _made(tmp_path)
    made = store_of(kubelet.agent.settings)
    assert made.records == kubelet.store.records, "a reboot keeps the kubelet's directory"
    assert kubelet.store.load() is None, "the front end was annotations"
    kubelet.store.begin()
    for text in ("", "{}", "[]", '{"shares": [{}]}', "\x00"):
        (kubelet.store.records / "broken.json").write_text(text)
        assert kubelet.store.load() == {}
    kubelet.store.end()
    assert kubelet.store.load() is None
