"""Sessions, which end by the runtime, by invalid bytes, or by the plugin after its answers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.answers import Reply, SynchronizeFailed
from nri_plugin.nri.connection import REGISTRATION_TIMEOUT_S, RegistrationTimedOut
from nri_plugin.protocol.errors import RegistrationRejected, RemoteProtocolError
from nri_plugin.protocol.session_events import RuntimeInfo
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.fake_trunk import Dropped
from tests.nri_plugin.nri.connection_scene import (
    ADJUSTED,
    Hook,
    forever,
    later,
    of_size,
    rig,
    session,
)
from tests.support import jump


class Slow:
    """A handler's hook that runs until the test sets `may_end`, even if it is cancelled."""

    def __init__(self, reply: Reply = None) -> None:
        self.begun, self.may_end, self.cancelled = (asyncio.Event() for _ in range(3))
        self._reply = reply

    async def __call__(self) -> Reply:
        self.begun.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
        return self._reply


@pytest.mark.parametrize(
    ("hook", "timeout_s", "text"),
    [
        (later(ValueError("a bug")), 60.0, "ValueError: a bug"),
        (forever, 0.4, "did not decide Synchronize"),
    ],
    ids=["a bug", "a hang"],
)
async def test_a_failed_synchronize_ends_the_session_though_the_runtime_would_stay(
    hook: Hook, timeout_s: float, text: str
) -> None:
    """NRI 0.6.1 keeps a plugin connected whose Synchronize failed, and never sends it an event."""
    runtime = ("containerd", "devel")
    async with rig(nri_version=(0, 6, 1), runtime=runtime, request_timeout_s=timeout_s) as r:
        r.hooks["Synchronize"] = hook
        await r.configure()
        with pytest.raises(RequestFailed, match=text):
            await r.runtime.call("Synchronize", nri.SynchronizeRequest(), nri.SynchronizeResponse)
        with pytest.raises(SynchronizeFailed, match=text):
            await r.plugin
        assert r.ready == []


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
    """The runtime may delay Synchronize until a pod with a long grace period has stopped."""
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


# --- the end


async def test_garbage_ends_the_connection_and_not_the_process() -> None:
    async with session() as r:
        r.runtime.trunk.write_raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises(RemoteProtocolError):
            await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("Shutdown", nri.Empty(), nri.Empty)


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_handler_that_cannot_be_cancelled_does_not_hold_the_end_up(
    leaving: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends by the plugin (`leaving`), or because the runtime closes the connection."""
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    async with session() as r:
        r.hooks["CreateContainer"] = slow = Slow()
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
        assert slow.cancelled.is_set()
        assert leaving or "outcome=stuck" in caplog.text
        assert not leaving or "did not decide" in str(creating.exception())


_QUIET_S = 10.0
"""A long time, by which the test advances the clock."""


async def test_a_stopping_plugin_answers_open_requests_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.QUIET_S", _QUIET_S)
    async with session(nri_version=(0, 12, 5)) as r:
        r.hooks["CreateContainer"] = slow = Slow(ADJUSTED)
        creating = asyncio.create_task(r.create())
        await slow.begun.wait()
        r.leaving.set()
        for _ in range(3):
            jump(_QUIET_S)
            for _ in range(10):
                await asyncio.sleep(0)
        assert not r.plugin.done()
        # The plugin also answers requests that arrive while it stops, here the validation.
        slow.may_end.set()
        assert await creating == ADJUSTED
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
        r.hooks["CreateContainer"] = later(of_size(3 << 20))
        for _ in range(3):
            r.runtime.send_call("CreateContainer", b"")
        r.runtime.trunk.stop_reading()
        await asyncio.sleep(0.1)
        r.plugin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await r.plugin
