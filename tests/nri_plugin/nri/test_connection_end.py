"""The end of a connection: by the runtime, by garbage, or by the plugin, which answers first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct

import pytest

from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.protocol.errors import RemoteProtocolError
from tests.nri_plugin.fake_trunk import Dropped
from tests.nri_plugin.nri.connection_scene import forever, rig, session
from tests.nri_plugin.objects import container, pod
from tests.support import jump

_QUIET_S = 10.0
"""Long, and passed by the test."""


async def turns() -> None:
    """Give the event loop turns for what is due."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">II", 1, (4 << 20) + 11),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">II", 2, 10) + struct.pack(">IIBB", 0, 99, 2, 0),
    ],
    ids=["frame-too-long", "http", "unasked-response"],
)
async def test_garbage_ends_the_connection_and_not_the_process(garbage: bytes) -> None:
    async with session() as r:
        r.runtime.send_raw(garbage)
        with pytest.raises(RemoteProtocolError):
            await r.plugin
        with pytest.raises(Dropped):
            await r.runtime.call("Shutdown", nri.Empty(), nri.Empty)


async def test_the_end_of_the_connection_cancels_what_runs() -> None:
    async with session() as r:
        cancelled = asyncio.Event()
        entered = asyncio.Event()

        async def hook() -> None:
            entered.set()
            try:
                await forever()
            finally:
                cancelled.set()

        r.handler.hooks["create"] = hook
        r.runtime.send_call("CreateContainer", nri.CreateContainerRequest().SerializeToString())
        await entered.wait()
        await r.runtime.close()
        await r.plugin
        assert cancelled.is_set()


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_handler_that_cannot_be_cancelled_does_not_hold_the_end_up(
    leaving: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime closes the connection, or the plugin stops once the request has timed out."""
    monkeypatch.setattr("nri_plugin.nri.connection.CLOSING_TIMEOUT_S", 0.05)
    async with session() as r:
        entered, release = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            entered.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        r.handler.hooks["create"] = stubborn
        if leaving:
            r.runtime.request_timeout_s = 0.2
        creating = asyncio.create_task(r.runtime.create(pod(), container()))
        await entered.wait()
        if leaving:
            r.leaving.set()
        else:
            await r.runtime.close()
            creating.cancel()
        await asyncio.wait([creating])
        async with asyncio.timeout(30):
            await r.plugin
        release.set()
        assert leaving or "outcome=stuck" in caplog.text
        assert not leaving or "did not decide" in str(creating.exception())


async def test_a_stopping_plugin_answers_open_requests_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nri_plugin.nri.connection.QUIET_S", _QUIET_S)
    async with session(nri_version=(0, 12, 5)) as r:
        asked, may_end = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            asked.set()
            await may_end.wait()

        r.handler.hooks["create"] = slow
        r.handler.adjustment = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
        creating = asyncio.create_task(r.runtime.create(pod(), container()))
        await asked.wait()
        r.leaving.set()
        for _ in range(3):
            jump(_QUIET_S)
            await turns()
        assert not r.plugin.done()
        # Requests that arrive meanwhile are answered, too: validation, here.
        may_end.set()
        reply = await creating
        assert reply is not None and reply.adjust.env[0].key == "A"
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
        r.runtime.stop_reading()
        await asyncio.sleep(0.1)
        r.plugin.cancel()
        with pytest.raises(asyncio.CancelledError):
            await r.plugin
