"""The plugin's registration and the first list of containers, and what ends the session there."""

from __future__ import annotations

import asyncio

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import SynchronizeFailed
from nri_plugin.nri.connection import (
    REGISTRATION_TIMEOUT_S,
    RegistrationTimedOut,
    RuntimeRefused,
    serve,
)
from nri_plugin.protocol.errors import RegistrationRejected
from nri_plugin.protocol.session_events import RuntimeInfo
from tests.nri_plugin.fake_runtime import FakeRuntime, RequestFailed, connected_pair
from tests.nri_plugin.nri.connection_scene import Recorder, forever, raiser, rig
from tests.nri_plugin.objects import container, pod
from tests.support import jump


async def test_a_failed_synchronize_ends_the_session_though_the_runtime_would_stay() -> None:
    """NRI 0.6.1 keeps such a plugin connected, and never sends it an event."""
    async with rig(nri_version=(0, 6, 1), runtime=("containerd", "devel")) as r:
        r.handler.hooks["synchronize"] = raiser(ValueError("a bug"))
        r.runtime.accept_registration(await r.runtime.receive_registration())
        await r.runtime.configure()
        with pytest.raises(RequestFailed):
            await r.runtime.call("Synchronize", nri.SynchronizeRequest(), nri.SynchronizeResponse)
        with pytest.raises(SynchronizeFailed, match="ValueError: a bug") as failed:
            await r.plugin
        assert isinstance(failed.value.__cause__, ValueError)
        assert r.ready == []


async def test_a_synchronize_that_hangs_is_answered_and_ends_the_session() -> None:
    async with rig(request_timeout_s=0.4) as r:
        r.handler.hooks["synchronize"] = forever
        with pytest.raises(RequestFailed, match="did not decide Synchronize"):
            await r.runtime.handshake()
        with pytest.raises(SynchronizeFailed):
            await r.plugin


async def test_a_fault_of_on_ready_is_logged_and_harms_no_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = await connected_pair()

    def on_ready(runtime: RuntimeInfo) -> None:
        raise BrokenPipeError(f"no reader for {runtime.name}")

    fake = FakeRuntime(*ours)
    plugin = asyncio.create_task(
        serve(theirs, Recorder().handle, name="gpuslice", index="50", on_ready=on_ready)
    )
    await fake.handshake()
    assert await fake.create(pod(), container()) is not None
    await fake.close()
    await plugin
    assert "no reader for containerd" in caplog.text


@pytest.mark.parametrize("answered", [False, True])
async def test_a_registration_without_configure_times_out(answered: bool) -> None:
    async with rig() as r:
        stream = await r.runtime.receive_registration()
        if answered:
            r.runtime.accept_registration(stream)
        jump(REGISTRATION_TIMEOUT_S)
        with pytest.raises(RegistrationTimedOut, match="holding the line"):
            await r.plugin


async def test_synchronize_may_take_its_time() -> None:
    """The runtime may delay it until a pod with a long grace period has stopped."""
    async with rig() as r:
        r.runtime.accept_registration(await r.runtime.receive_registration())
        await r.runtime.configure()
        jump(REGISTRATION_TIMEOUT_S)
        await r.runtime.synchronize()
        assert r.ready


async def test_a_rejected_registration_has_the_runtimes_reason() -> None:
    async with rig() as r:
        stream = await r.runtime.receive_registration()
        r.runtime.refuse_registration(stream, 2, 'invalid plugin index: "5"')
        with pytest.raises(RegistrationRejected, match="invalid plugin index") as rejected:
            await r.plugin
        assert rejected.value.code == 2


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [("containerd", "v1.7.24", (0, 6, 1)), ("cri-o", "1.35.0", (0, 11, 0))],
)
async def test_a_runtime_that_is_not_served_is_refused_by_name_at_configure(
    name: str, version: str, nri_version: tuple[int, int, int]
) -> None:
    """It gets the reason, and the agent's side ends with the same words; nothing is served."""
    async with rig(runtime=(name, version), nri_version=nri_version) as built:
        with pytest.raises(RequestFailed, match=f"{name} {version} is not served") as failure:
            await built.runtime.handshake()
        with pytest.raises(RuntimeRefused) as refused:
            await built.plugin
        assert str(refused.value) == failure.value.message
        assert (built.handler.asked, built.ready) == ([], [])
