"""A connection from the plugin's registration and the first list of containers to its end: by the
runtime, by garbage, or by the plugin, which answers first."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import SynchronizeFailed
from nri_plugin.nri.connection import REGISTRATION_TIMEOUT_S, RegistrationTimedOut, RuntimeRefused
from nri_plugin.protocol.errors import RegistrationRejected, RemoteProtocolError
from nri_plugin.protocol.session_events import RuntimeInfo
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.fake_trunk import Dropped
from tests.nri_plugin.nri.connection_scene import forever, raiser, rig, session
from tests.support import jump


class Slow:
    """A handler's hook that has begun, and continues until it may end."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.begun, self.may_end, self.cancelled = (asyncio.Event() for _ in range(3))
        self._stubborn = stubborn

    async def __call__(self) -> None:
        self.begun.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                if not self._stubborn:
                    raise


async def test_a_failed_synchronize_ends_the_session_though_the_runtime_would_stay() -> None:
    """NRI 0.6.1 keeps such a plugin connected, and never sends it an event."""
    async with rig(nri_version=(0, 6, 1), runtime=("containerd", "devel")) as r:
        r.handler.hooks["synchronize"] = raiser(ValueError("a bug"))
        await r.configure()
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
    def on_ready(runtime: RuntimeInfo) -> None:
        raise BrokenPipeError(f"no reader for {runtime.name}")

    async with rig() as r:
        r.on_ready = on_ready
        await r.runtime.handshake()
        assert await r.create() is not None
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
        await r.configure()
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
    async with rig(runtime=(name, version), nri_version=nri_version) as r:
        with pytest.raises(RequestFailed, match=f"{name} {version} is not served") as failure:
            await r.runtime.handshake()
        with pytest.raises(RuntimeRefused) as refused:
            await r.plugin
        assert str(refused.value) == failure.value.message
        assert (r.handler.asked, r.ready) == ([], [])


# --- the end


async def test_garbage_ends_the_connection_and_not_the_process() -> None:
    async with session() as r:
        r.runtime.trunk.write_raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(RemoteProtocolError):
            await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("Shutdown", nri.Empty(), nri.Empty)


async def test_the_end_of_the_connection_cancels_what_runs() -> None:
    async with session() as r:
        r.handler.hooks["create"] = slow = Slow()
        r.runtime.send_call("CreateContainer", b"")
        await slow.begun.wait()
        await r.runtime.close()
        await r.plugin
        assert slow.cancelled.is_set()


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_handler_that_cannot_be_cancelled_does_not_hold_the_end_up(
    leaving: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime closes the connection, or the plugin stops once the request has timed out."""
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    async with session() as r:
        r.handler.hooks["create"] = slow = Slow(stubborn=True)
        if leaving:
            r.runtime.request_timeout_s = 0.2
        creating = asyncio.create_task(r.create())
        await slow.begun.wait()
        if leaving:
            r.leaving.set()
        else:
            await r.runtime.close()
            creating.cancel()
        await asyncio.wait([creating])
        async with asyncio.timeout(30):
            await r.plugin
        slow.may_end.set()
        assert leaving or "outcome=stuck" in caplog.text
        assert not leaving or "did not decide" in str(creating.exception())


_QUIET_S = 10.0
"""Long, and passed by the test."""


async def test_a_stopping_plugin_answers_open_requests_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.QUIET_S", _QUIET_S)
    async with session(nri_version=(0, 12, 5)) as r:
        r.handler.hooks["create"] = slow = Slow()
        r.handler.adjustment = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
        creating = asyncio.create_task(r.create())
        await slow.begun.wait()
        r.leaving.set()
        for _ in range(3):
            jump(_QUIET_S)
            for _ in range(10):
                await asyncio.sleep(0)
        assert not r.plugin.done()
        # Requests that arrive meanwhile are answered, too: validation, here.
        slow.may_end.set()
        assert await creating == nri.CreateContainerResponse(adjust=r.handler.adjustment)
        assert not r.plugin.done()
        jump(_QUIET_S)
        await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("CreateContainer", nri.CreateContainerRequest(), nri.Empty)


@pytest.mark.parametrize("introduced", [True, False])
async def test_a_stopping_plugin_without_requests_exits_at_once(introduced: bool) -> None:
    async with rig() as r:
        if introduced:
            await r.runtime.handshake()
        r.leaving.set()
        await r.plugin


async def test_a_peer_that_does_not_read_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    caplog.set_level(logging.CRITICAL)
    async with session() as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (3 << 20)})
        for _ in range(3):
            r.runtime.send_call("CreateContainer", b"")
        r.runtime.trunk.stop_reading()
        await asyncio.sleep(0.1)
        r.plugin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await r.plugin
