"""POSTs and PATCHes on their own connections, against a server whose answers are scripted byte for
byte."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kube.posts import KEEP_S, NotAnswered, NotSent, Posts
from lab.cluster import certificate
from tests.support import jump, until_async

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
_LONG_S = 60.0
_OWN = b"Content-Type: a/b\r\n"


@dataclass
class Server:
    """script: the answer to each request, in order; None: no answer; b"": it closes the connection.
    asked: the received bytes, by connection."""

    script: list[bytes | None]
    asked: list[list[bytes]] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here: list[bytes] = []
        self.asked.append(here)
        self.connections.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.rpartition(b"Content-Length: ")[2])
                here.append(head + await reader.readexactly(length))
                said = self.script.pop(0)
                if said is None:
                    await reader.read()
                if not said:
                    break
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass
class Scene:
    server: Server
    posts: Posts
    now_s: float = 0.0

    async def post(self, timeout_s: float = _LONG_S) -> bytes:
        return await self.send(b"POST", timeout_s)

    async def send(self, method: bytes, timeout_s: float = _LONG_S) -> bytes:
        answer = await self.posts.send(method, "/p", _OWN, b"{}", timeout_s)
        return answer.body


@asynccontextmanager
async def scene_of(*script: bytes | None) -> AsyncIterator[Scene]:
    server = Server(list(script))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    scene = Scene(server, None)  # type: ignore[arg-type]
    fields = {"Authorization": "Bearer secret"}
    url = f"http://127.0.0.1:{server.port}/behind/"
    scene.posts = Posts(url, None, "", fields, lambda: scene.now_s)
    try:
        yield scene
    finally:
        scene.posts.close()
        listening.close()


def play(act: Callable[[Scene], Awaitable[None]], *script: bytes | None) -> Server:
    async def run() -> Server:
        async with asyncio.timeout(_LONG_S), scene_of(*script) as scene:
            await act(scene)
            return scene.server

    return asyncio.run(run())


def test_sequential_requests_of_either_method_share_one_connection() -> None:
    methods = (b"POST", b"PATCH", b"POST")

    async def act(scene: Scene) -> None:
        assert [await scene.send(each) for each in methods] == [b"{}"] * 3

    server = play(act, OK, OK, OK)
    (asked,) = server.asked
    assert asked == [
        b"%b /behind/p HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer secret\r\n"
        b"Content-Type: a/b\r\nContent-Length: 2\r\n\r\n{}" % (method, server.port)
        for method in methods
    ]


def test_concurrent_posts_have_a_connection_each() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.gather(*(scene.post() for _ in range(3)))
        await scene.post()

    server = play(act, *[OK] * 4)
    assert sorted(map(len, server.asked)) == [1, 1, 2]


async def _it_is_old(scene: Scene) -> None:
    scene.now_s += KEEP_S


async def _it_is_closed(scene: Scene) -> None:
    scene.server.connections[0].close()
    await until_async(lambda: not scene.posts._kept[0].is_usable)


async def _something_came(scene: Scene) -> None:
    scene.server.connections[0].write(OK)
    await until_async(lambda: not scene.posts._kept[0].is_usable)


async def _nothing(scene: Scene) -> None:
    pass


NOT_USED_AGAIN = {
    "it was not used for long": (OK, _it_is_old),
    "the server closes it": (OK, _it_is_closed),
    "it says something without being asked": (OK, _something_came),
    "the answer says that it is the last": (LAST, _nothing),
    "there is more behind the answer": (OK + b"HTTP/1.1", _nothing),
}


@pytest.mark.parametrize("why", NOT_USED_AGAIN)
def test_a_connection_is_not_reused_if(why: str) -> None:
    first, happens = NOT_USED_AGAIN[why]

    async def act(scene: Scene) -> None:
        await scene.post()
        await happens(scene)
        assert await scene.post() == b"{}"

    assert [len(each) for each in play(act, first, OK).asked] == [1, 1]


NO_ANSWER = {
    "it hangs up": (b"", "the connection ended"),
    "it hangs up in the middle": (OK[:-1], "no answer within 5.0 s"),
    "what it says is no answer": (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP response"),
    "it says nothing": (None, "no answer within 5.0 s"),
}


@pytest.mark.parametrize("method", [b"POST", b"PATCH"])
@pytest.mark.parametrize("why", NO_ANSWER)
def test_a_request_without_an_answer_is_sent_once_and_reported_as_such(
    why: str, method: bytes
) -> None:
    said, reason = NO_ANSWER[why]

    async def act(scene: Scene) -> None:
        sending = asyncio.create_task(scene.send(method, timeout_s=5.0))
        await until_async(lambda: any(scene.server.asked))
        if "within" in reason:
            jump(5)
        with pytest.raises(NotAnswered, match=reason):
            await sending
        assert await scene.send(method) == b"{}"

    assert [len(each) for each in play(act, said, OK).asked] == [1, 1]


@pytest.mark.parametrize("method", [b"POST", b"PATCH"])
def test_a_request_on_a_reused_connection_that_ends_is_not_sent_again(method: bytes) -> None:
    async def act(scene: Scene) -> None:
        await scene.post()
        with pytest.raises(NotAnswered, match="the connection ended"):
            await scene.send(method)

    assert [len(each) for each in play(act, OK, b"", OK).asked] == [2]


def test_a_client_that_does_not_wait_for_the_answer_leaves_no_connection_to_it() -> None:
    async def act(scene: Scene) -> None:
        waiting = asyncio.create_task(scene.post())
        await until_async(lambda: scene.server.asked and scene.server.asked[0])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until_async(scene.server.connections[0].is_closing)
        assert await scene.post() == b"{}"

    assert [len(each) for each in play(act, None, OK).asked] == [1, 1]


def test_a_post_cancelled_as_its_answer_arrives_leaves_no_connection() -> None:
    async def act(scene: Scene) -> None:
        await scene.post()
        (kept,) = scene.posts._kept
        waiting = asyncio.create_task(scene.post())
        await until_async(lambda: len(scene.server.asked[0]) == 2)
        kept.data_received(OK)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until_async(scene.server.connections[0].is_closing)

    play(act, OK, None)


def test_a_connection_with_bytes_behind_the_answer_is_not_reused() -> None:
    async def act(scene: Scene) -> None:
        await scene.post()
        (kept,) = scene.posts._kept
        waiting = asyncio.create_task(scene.post())
        await until_async(lambda: len(scene.server.asked[0]) == 2)
        kept.data_received(OK)
        kept.data_received(b"H")
        assert await waiting == b"{}"
        assert await scene.post() == b"{}"

    assert [len(each) for each in play(act, OK, None, OK).asked] == [2, 1]


def test_a_post_to_a_port_without_a_server_is_not_sent() -> None:
    async def act() -> None:
        posts = Posts("http://127.0.0.1:1", None, "", {})
        with pytest.raises(NotSent, match=r"127\.0\.0\.1:1: "):
            await posts.send(b"POST", "/p", b"", b"{}", _LONG_S)

    asyncio.run(act())


def test_a_post_without_a_connection_in_time_is_not_sent() -> None:
    """As with a frozen server: the kernel accepts the connection, TLS waits for the server."""

    async def act(port: int) -> None:
        posts = Posts(f"https://127.0.0.1:{port}", ssl.create_default_context(), "", {})
        with pytest.raises(NotSent, match=r": no connection within 0\.2 s"):
            await posts.send(b"POST", "/p", b"", b"{}", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        asyncio.run(act(frozen.getsockname()[1]))


def _speaks_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_server_is_the_one_its_certificate_names(host: str, tmp_path: Path) -> None:
    """By its address, or by another name if one is given."""
    if ":" in host and not _speaks_ipv6():
        pytest.skip("this machine has no address of IPv6")
    made, key = tmp_path / "certificate", tmp_path / "key"
    named = "subjectAltName=DNS:api.example,IP:" + host.strip("[]")
    certificate.make(made, key, ("/CN=api", named))
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(made, key)

    async def act() -> None:
        server = Server([OK, OK])
        listening = await asyncio.start_server(server.serve, host.strip("[]"), 0, ssl=there)
        url = f"https://{host}:{listening.sockets[0].getsockname()[1]}"
        for name in ("", "api.example"):
            posts = Posts(url, ssl.create_default_context(cafile=made), name, {})
            assert (await posts.send(b"POST", "/p", b"", b"{}", _LONG_S)).body == b"{}"
            posts.close()
        other = Posts(url, ssl.create_default_context(cafile=made), "other.example", {})
        with pytest.raises(NotSent, match="CERTIFICATE_VERIFY_FAILED"):
            await other.send(b"POST", "/p", b"", b"{}", _LONG_S)
        listening.close()
        await until_async(lambda: all(each.is_closing() for each in server.connections))

    asyncio.run(act())


def test_close_completes_the_open_post_and_keeps_no_connection() -> None:
    async def act(scene: Scene) -> None:
        await scene.post()
        kept = scene.posts._kept[0]
        waiting = asyncio.create_task(scene.post())
        await until_async(lambda: len(scene.server.asked[0]) == 2)
        scene.posts.close()
        assert await waiting == b"{}"
        assert not kept.is_usable and not scene.posts._kept

    play(act, OK, OK)
