"""The whole agent, in a process without a driver, against a runtime at a socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
from pathlib import Path

import pytest

from nri_plugin import agent, command_line
from tests.nri_plugin.fake_runtime import Dropped, FakeRuntime, RequestFailed


def _readyz(place: Path) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection):
        connection.sock.connect(str(place))
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


async def test_a_pause_ends_where_containerd_makes_its_socket_anew(tmp_path: Path) -> None:
    """After a runtime that was reached has refused the agent, the agent pauses for minutes."""
    place = tmp_path / "nri.sock"
    place.touch()
    pausing = asyncio.create_task(agent._pause(place, 300))
    await asyncio.sleep(0.05)
    assert not pausing.done()
    (tmp_path / "new.sock").touch()
    (tmp_path / "new.sock").rename(place)
    async with asyncio.timeout(60):
        await pausing


def test_a_runtime_too_old_is_named_in_log_and_readiness(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = tmp_path / "agent.sock"
    flags = ["--library", tmp_path / "absent.so", "--http", f"unix:{page}"]
    flags += ["--nri-socket", tmp_path / "nri.sock", "--run-dir", tmp_path / "run"]
    flags += ["--store-dir", tmp_path / "store", "--cdi-dir", tmp_path / "cdi"]
    chosen = command_line.from_arguments([*map(str, flags)], {})
    received: list[str] = []
    answers: list[str] = []

    async def serve_nri(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake = FakeRuntime(reader, writer, runtime=("containerd", "v1.7.24"), nri_version=(0, 6, 1))
        try:
            await fake.handshake()
        except (RequestFailed, Dropped) as error:
            received.append(str(error))
        await fake.close()

    async def test() -> None:
        leaving = asyncio.Event()
        server = await asyncio.start_unix_server(serve_nri, chosen.nri_socket)
        serving = asyncio.create_task(agent.run(chosen, answers.append, leaving, "test"))
        async with asyncio.timeout(60):
            while not serving.done():
                await asyncio.sleep(0.05)
                if page.exists():
                    status, text = await asyncio.to_thread(_readyz, page)
                    if "v1.7.24 is not served" in text:
                        assert status == 503
                        break
        leaving.set()
        await serving
        server.close()

    (tmp_path / "run").mkdir()
    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert answers == []
    assert "containerd v1.7.24 is not served: its NRI (0.6.1)" in received[0]
    assert "containerd v1.7.24 is not served: its NRI (0.6.1)" in caplog.text
    assert "use containerd 1.7.26 or newer" in caplog.text
