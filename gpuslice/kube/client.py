"""A thin client of the API server: JSON over aiohttp, one method per verb.

Handles paths, timeouts and Kubernetes' errors; has no code for particular object types.
Every request has a deadline. A write passes the same deadline to the server (`timeout=`), so that
the server does not apply the write later. aiohttp sends POST and PATCH once: if no answer arrives,
the caller must check whether the write was applied. aiohttp repeats GET, PUT and DELETE if a reused
connection turns out to be closed.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import aiohttp
import orjson
from aiohttp import hdrs

from gpuslice.kube.access import Access, AccessError
from gpuslice.kube.errors import NO_ANSWER, UNREACHABLE, KubeError
from gpuslice.kube.fields import Json

TIMEOUT_S: Final = 10.0
"""Default timeout of one request, from its start to the last byte of the answer."""
WATCH_IDLE_S: Final = 150.0
"""Time without data after which a watch is treated as disconnected. The API server sends a bookmark
about every minute."""
PAGE_TIMEOUT_S: Final = 30.0
"""Timeout of one page of a list. It is long because a timeout discards all earlier pages."""
PAGE: Final = 500
"""Objects per page of a list: a few megabytes of text, tens of megabytes as objects."""

METADATA_ONLY: Final = "PartialObjectMetadata"
"""Value of `only` for which the server sends only the objects' metadata."""

MERGE_PATCH: Final = "application/merge-patch+json"
IGNORE: Final = "Ignore"
"""Value of `fieldValidation` for which the server does not check for unknown and repeated fields.
Used where this program composes the body."""

_JSON: Final = "application/json"
_CREDENTIALS_S: Final = 60.0
_CONNECTIONS: Final = 256
_IDLE_S: Final = 60.0
"""Idle time after which a connection is not reused. A firewall on the path may have dropped it."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""Socket options that detect within half a minute a host that disappeared without closing."""
_TEXT_MAX: Final = 500


class Kube:
    """The client. Call `close` after use, or use the client as a context manager.

    load: reads the access again. It is called in a thread, may block, and may raise AccessError.
    user_agent: distinguishes programs in the API server's audit log.
    """

    def __init__(
        self,
        access: Access,
        load: Callable[[], Access] | None = None,
        clock: Callable[[], float] = time.monotonic,
        watch_idle_s: float = WATCH_IDLE_S,
        user_agent: str = "gpuslice",
    ) -> None:
        self._load = load
        self._user_agent = user_agent
        self._watch_idle_s = watch_idle_s
        self._clock = clock
        self.problem = ""
        """Why the credentials could not be read again. The last ones remain in use."""
        self._session: aiohttp.ClientSession | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._use(access)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        if self._session is not None:
            await self._session.close()

    # --- reading

    async def get(self, path: str, *, timeout_s: float = TIMEOUT_S, **query: object) -> Any:
        return await self._ask("GET", path, query, timeout_s=timeout_s)

    async def text(self, path: str, **query: object) -> str:
        """Return an answer that is not JSON, for example a pod's log."""
        content = await self._answer("GET", path, query, timeout_s=TIMEOUT_S)
        return content.decode(errors="replace")

    async def list(
        self, path: str, *, only: str = "", page: int = PAGE, **query: object
    ) -> AsyncGenerator[tuple[Sequence[Json], str], None]:
        """Yield each page: its objects, and the resourceVersion of the whole list.

        The list is as recent as the API server's store. Raises KubeError, also between pages: 410
        if the server no longer keeps the list's version. The caller must then start again.
        """
        query["limit"] = page
        only = only and f"{only}List"
        while True:
            answer = await self._ask("GET", path, query, timeout_s=PAGE_TIMEOUT_S, only=only)
            metadata = answer.get("metadata") or {}
            yield answer.get("items") or (), metadata.get("resourceVersion", "")
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(
        self, path: str, resource_version: str, *, only: str = "", **query: object
    ) -> AsyncGenerator[Sequence[Json], None]:
        """Yield batches of the events ({"type": ..., "object": ...}) after the given version, with
        bookmarks, until the server ends the watch. The first batch is empty: it shows that the
        watch is established. Raises KubeError: 410 if the version is no longer available."""
        query.update(watch="true", allowWatchBookmarks="true", resourceVersion=resource_version)
        timeout = aiohttp.ClientTimeout(total=None, connect=TIMEOUT_S, sock_read=self._watch_idle_s)
        try:
            async with self._request("GET", path, query, timeout, only=only) as response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                yield ()
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield [_event(line) for line in lines if line]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error

    @asynccontextmanager
    async def websocket(
        self, path: str, protocol: str, *, timeout_s: float = TIMEOUT_S, **query: object
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect to a subresource that streams, until the end of the block. Raises KubeError, also
        after timeout_s. The server authorises a connection as `get` and since 1.35 as `create`."""
        session = self._open()
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.ws_connect(
                    f"{self._access.server}{path}?{urlencode(query)}",
                    protocols=(protocol,),
                    headers=self._headers,
                    ssl=True if self._context is None else self._context,
                    server_hostname=self._access.server_name or None,
                    proxy=self._access.proxy or None,
                ) as socket,
            ):
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            raise KubeError(error.status, f"HTTP {error.status}", error.message) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error

    # --- writing

    async def post(
        self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S, **query: object
    ) -> Any:
        return await self._ask("POST", path, query, body, timeout_s=timeout_s)

    async def patch(
        self, path: str, body: Json, *, timeout_s: float = TIMEOUT_S, **query: object
    ) -> Any:
        """Send a merge patch."""
        return await self._ask("PATCH", path, query, body, timeout_s=timeout_s)

    async def delete(
        self, path: str, body: Json | None = None, *, timeout_s: float = TIMEOUT_S, **query: object
    ) -> Any:
        return await self._ask("DELETE", path, query, body, timeout_s=timeout_s)

    # --- inside

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Json | None = None,
        **how: Any,
    ) -> Any:
        """Return the answer's JSON. how: more keyword arguments of `_answer`."""
        content = await self._answer(method, path, query, body, **how)
        try:
            return orjson.loads(content)
        except ValueError as error:
            raise KubeError(0, NO_ANSWER, f"{path}: not JSON: {content[:80]!r}") from error

    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Json | None = None,
        *,
        timeout_s: float,
        only: str = "",
    ) -> bytes:
        if method != "GET":
            query = {"timeout": f"{timeout_s:.3f}s", **query}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._request(method, path, query, timeout, body, only) as response:
                status, content = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failure(error) from error
        if status >= 300:
            if status == 401:
                self._renewed_s = -math.inf
            raise _refusal(status, content)
        return content

    def _open(self) -> aiohttp.ClientSession:
        """Return the session, made at the first request, with current credentials."""
        self._renew()
        if self._session is None:
            self._session = _session()
        return self._session

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        timeout: aiohttp.ClientTimeout,
        body: Json | None = None,
        only: str = "",
    ) -> aiohttp.client._RequestContextManager:
        """Send a request. A server that does not support `only` answers with whole objects."""
        return self._open().request(
            method,
            f"{self._access.server}{path}{'?' if query else ''}{urlencode(query)}",
            data=None if body is None else orjson.dumps(body),
            headers={
                **self._headers,
                hdrs.ACCEPT: f"{_JSON};as={only};g=meta.k8s.io;v=v1,{_JSON}" if only else _JSON,
                hdrs.CONTENT_TYPE: MERGE_PATCH if method == "PATCH" else _JSON,
            },
            timeout=timeout,
            allow_redirects=False,
            ssl=True if self._context is None else self._context,
            server_hostname=self._access.server_name or None,
            proxy=self._access.proxy or None,
        )

    def _use(self, access: Access) -> None:
        """Replace the address and credentials. Connections with the old TLS context are not reused.
        After AccessError or OSError the previous address and credentials are still in use."""
        if not access.authorization.isprintable():
            raise AccessError("credentials: invalid value: must have no control characters")
        try:
            url = urlsplit(access.server)
            if url.scheme not in ("http", "https") or not url.hostname or url.port == 0:
                raise ValueError("invalid value: must be https://HOST or http://HOST")
            context = access.context()
        except ValueError as error:
            raise AccessError(f"{access.server}: {error}") from error
        # Within a cluster, compression costs both programs more than it saves.
        headers: dict[str, str] = {
            hdrs.ACCEPT_ENCODING: "identity",
            hdrs.USER_AGENT: self._user_agent,
        }
        if access.authorization:
            headers[hdrs.AUTHORIZATION] = access.authorization
        self._access, self._context, self._headers = access, context, headers
        self._renewed_s = self._clock()

    def _renew(self) -> None:
        due = self._renewed_s + _CREDENTIALS_S <= self._clock()
        if self._load is not None and self._renewing is None and due:
            self._renewing = asyncio.create_task(self._read_again(), name="read credentials")

    async def _read_again(self) -> None:
        assert self._load is not None
        try:
            access = await asyncio.to_thread(self._load)
            if access != self._access:
                self._use(access)
            self.problem = ""
        except (AccessError, OSError) as error:
            self.problem = f"credentials: {error}"
        finally:
            self._renewed_s = self._clock()
            self._renewing = None


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=_CONNECTIONS, keepalive_timeout=_IDLE_S, socket_factory=_socket
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made


def _event(line: bytes) -> Json:
    try:
        event = orjson.loads(line)
    except ValueError as error:
        raise KubeError(0, NO_ANSWER, f"a watch's line is not JSON: {line[:80]!r}") from error
    if event.get("type") == "ERROR":
        failure = event.get("object") or {}
        raise KubeError(int(failure.get("code") or 0), *_words(failure))
    return event  # type: ignore[no-any-return]


def _refusal(status: int, content: bytes) -> KubeError:
    """Return the error of an answer: a Status object, or any text that a proxy wrote instead."""
    try:
        return KubeError(status, *_words(orjson.loads(content)))
    except (ValueError, AttributeError):
        return KubeError(status, f"HTTP {status}", content[:_TEXT_MAX].decode(errors="replace"))


def _words(status: Json) -> tuple[str, str]:
    reason = status.get("reason") or f"HTTP {status.get('code')}"
    return str(reason), str(status.get("message") or "")[:_TEXT_MAX]


def _failure(error: Exception) -> KubeError:
    unasked = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    reason = UNREACHABLE if isinstance(error, unasked) else NO_ANSWER
    return KubeError(0, reason, str(error) or type(error).__name__)
