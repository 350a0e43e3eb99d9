"""The server on real sockets: order of answers, and timeouts of clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop

from kube.http1 import CONTINUE, TEXT, Request, Response
from scheduler.server import TIMEOUT_S, Server
from tests.support import until_async

MOST = 64 << 20
LONG_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


def post(path: bytes, body: bytes = b"", fields: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\nHost: h\r\n" + length + fields + b"\r\n" + body


def ok(body: bytes) -> bytes:
    return OK % (len(body), body)


class Answers:
    """/echo is answered at once, /wait when `go` is set; /large with the given number of bytes."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[str] = []
        self.done: list[str] = []

    def __call__(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        self.asked.append(request.path)
        if request.path.startswith("/wait"):
            return self._wait(request)
        if request.path == "/large":
            return Response(b"x" * int(request.body))
        if request.path == "/fault":
            return self._fail()
        if request.path != "/echo":
            return Response(b"no\n", TEXT, 404)
        return Response(request.body)

    async def _wait(self, request: Request) -> Response:
        await self.go.wait()
        self.done.append(request.path)
        return Response(request.body)

    async def _fail(self) -> Response:
        await asyncio.sleep(0)
        raise ZeroDivisionError("so")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def got(self, *wanted: bytes) -> None:
        text = b"".join(wanted)
        assert await asyncio.wait_for(self.reader.readexactly(len(text)), LONG_S) == text

    async def status(self) -> int:
        line = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LONG_S)
        return int(line.split()[1])

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await asyncio.wait_for(self.reader.read(), LONG_S)

    async def leave(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class Scene:
    def __init__(self, server: Server, answers: Answers) -> None:
        self.server = server
        self.answers = answers

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = Client(*await asyncio.open_connection(*self.server.address))
        try:
            yield client
        finally:
            await client.leave()


@asynccontextmanager
async def serving(timeout_s: float = TIMEOUT_S, leave_s: float = LONG_S) -> AsyncIterator[Scene]:
    answers = Answers()
    server = Server(answers, MOST, timeout_s, leave_s)
    await server.start("127.0.0.1", 0)
    try:
        yield Scene(server, answers)
    finally:
        await server.close()


@pytest.fixture(
    params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"], autouse=True
)
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with serving() as there, there.client() as client:
        for number in range(3):
            client.send(post(b"/echo", b"%d" % number))
            await client.got(ok(b"%d" % number))
        client.send(post(b"/echo", b"last", b"Connection: close\r\n"))
        assert b"Connection: close" in await client.rest()


async def test_requests_sent_at_once_are_answered_one_by_one_in_their_order() -> None:
    async with serving() as there, there.client() as client:
        client.send(post(b"/echo", b"1"), post(b"/wait", b"2"), post(b"/echo", b"3"))
        client.send(post(b"/wait", b"4"), post(b"/echo", b"5"))
        await client.got(ok(b"1"))
        await until_async(lambda: there.answers.asked == ["/echo", "/wait"])
        client.send(post(b"/echo", b"6"))
        there.answers.go.set()
        await client.got(*(ok(b"%d" % number) for number in range(2, 7)))


async def test_what_is_sent_while_a_request_is_answered_stays_with_the_client() -> None:
    """The client keeps it: many megabytes that the server does not buffer."""
    async with serving() as there, there.client() as client:
        client.send(post(b"/wait"))
        await until_async(lambda: there.answers.asked)
        large = b"x" * (48 << 20)
        client.send(post(b"/echo", large))
        await asyncio.sleep(0.2)
        assert client.writer.transport.get_write_buffer_size() > 16 << 20
        there.answers.go.set()
        await client.got(ok(b""), ok(large))


async def test_a_body_may_be_chunked_or_follow_100_continue() -> None:
    async with serving() as there, there.client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        await client.got(ok(b"abc"))
        client.send(b"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n")
        client.send(b"Content-Length: 2\r\n\r\n")
        await client.got(CONTINUE)
        client.send(b"ab")
        await client.got(ok(b"ab"))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (MOST + 1), 413),
        (b"POST /echo HTTP/1.1\r\nHost: h\r\nX: " + b"x" * (32 << 10), 431),
    ],
)
async def test_a_client_that_is_refused_reads_why_though_it_sends_on(
    sent: bytes, status: int
) -> None:
    async with serving() as there, there.client() as client:
        client.send(sent, b"x" * (4 << 20))
        assert await client.status() == status
        assert not there.answers.asked
        await client.leave()
        await until_async(lambda: not there.server.connections)


async def test_a_client_that_disconnects_early_does_not_end_the_work() -> None:
    async with serving() as there:
        async with there.client() as client:
            client.send(post(b"/wait"))
            await until_async(lambda: there.answers.asked)
        there.answers.go.set()
        await until_async(lambda: there.answers.done == ["/wait"])
        await until_async(lambda: not there.server.connections)
        async with there.client() as another:
            another.send(post(b"/echo", b"1"))
            await another.got(ok(b"1"))


async def test_a_client_that_has_no_more_to_send_is_answered() -> None:
    async with serving() as there, there.client() as client:
        client.send(post(b"/wait", b"1"))
        client.writer.write_eof()
        await until_async(lambda: there.answers.asked)
        there.answers.go.set()
        assert (await client.rest())[-1:] == b"1"


async def test_a_fault_ends_the_connection_alone() -> None:
    async with serving() as there:
        loop = asyncio.get_running_loop()
        faults: list[object] = []
        loop.set_exception_handler(lambda _, said: faults.append(said["exception"]))
        async with there.client() as client, there.client() as another:
            client.send(post(b"/fault"))
            with suppress(ConnectionResetError):
                assert await client.rest() == b""
            another.send(post(b"/echo", b"1"))
            await another.got(ok(b"1"))
        await until_async(lambda: not there.server.under_way)


async def test_a_client_that_does_not_send_the_rest_is_not_waited_for() -> None:
    async with (
        serving(timeout_s=0.2) as there,
        there.client() as slow,
        there.client() as idle,
    ):
        slow.send(post(b"/echo", b"12")[:-1])
        idle.send(post(b"/echo", b"1"))
        await idle.got(ok(b"1"))
        assert await slow.status() == 408
        idle.send(post(b"/echo", b"2"))
        await idle.got(ok(b"2"))
        await until_async(lambda: len(there.server.connections) == 1)
        assert there.answers.asked == ["/echo", "/echo"]


async def test_a_client_that_does_not_read_the_answer_is_not_waited_for() -> None:
    async with serving(timeout_s=0.2) as there:
        with socket.create_connection(there.server.address) as deaf:
            deaf.sendall(post(b"/large", b"%d" % (32 << 20)) + post(b"/echo"))
            await until_async(lambda: there.answers.asked)
            await until_async(lambda: not there.server.connections)
            assert there.answers.asked == ["/large"]


async def test_a_client_that_reads_slowly_has_all_answers() -> None:
    async with serving() as there, there.client() as client:
        size = 8 << 20
        client.send(post(b"/large", b"%d" % size), post(b"/echo", b"1"))
        await asyncio.sleep(0.1)
        assert there.answers.asked == ["/large"]
        await client.got(ok(b"x" * size), ok(b"1"))


async def test_at_the_end_those_that_are_being_answered_are_and_the_idle_are_left() -> None:
    async with serving() as there:
        async with there.client() as idle, there.client() as busy, there.client() as half:
            idle.send(post(b"/echo"))
            await idle.got(ok(b""))
            half.send(post(b"/echo", b"1")[:-1])
            busy.send(post(b"/wait", b"1"), post(b"/echo"))
            await until_async(lambda: "/wait" in there.answers.asked)
            closing = asyncio.create_task(there.server.close())
            assert await idle.rest() == await half.rest() == b""
            with pytest.raises(OSError):
                await asyncio.open_connection(*there.server.address)
            there.answers.go.set()
            assert b"Connection: close" in (said := await busy.rest())
            assert said.endswith(b"\r\n\r\n1")
            await closing
        assert there.answers.asked == ["/echo", "/wait"]


async def test_at_the_end_those_that_take_long_are_left() -> None:
    async with serving(leave_s=0.1) as there, there.client() as client:
        client.send(post(b"/wait"))
        await until_async(lambda: there.answers.asked)
        await there.server.close()
        with suppress(ConnectionResetError):
            assert await client.rest() == b""
        assert not there.server.under_way


async def test_an_address_that_is_in_use_is_an_error() -> None:
    async with serving() as there:
        other = Server(Answers(), MOST)
        with pytest.raises(OSError):
            await other.start(*there.server.address)
        await other.close()
