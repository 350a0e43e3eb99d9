"""An asynchronous client of the lab's API server, for bulk operations; single ones use kubectl."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import orjson

MERGE_PATCH: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_AT_ONCE: Final = 64
_ANSWER_S: Final = 60.0

Json = dict[str, Any]
_T = TypeVar("_T")


class Served(Protocol):
    """An API server and its credentials: a ControlPlane."""

    @property
    def server(self) -> str: ...
    @property
    def ca(self) -> Path: ...
    def token(self, user: str = ...) -> str: ...


class ApiError(RuntimeError):
    """The server refused the request. status: the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """A client as one of the control plane's users; enter it in the event loop that uses it."""

    def __init__(self, plane: Served, user: str = "admin") -> None:
        self._plane = plane
        self._user = user

    async def __aenter__(self) -> Api:
        tls = ssl.create_default_context(cafile=str(self._plane.ca))
        self._session = aiohttp.ClientSession(
            self._plane.server,
            connector=aiohttp.TCPConnector(limit=_AT_ONCE, ssl=tls),
            headers={"Authorization": f"Bearer {self._plane.token(self._user)}"},
            timeout=aiohttp.ClientTimeout(_ANSWER_S),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(
        self, method: str, path: str, body: Json | None = None, content: str = _JSON
    ) -> Json:
        """Raises ApiError, and aiohttp.ClientError or TimeoutError where there is no answer."""
        found: Json = orjson.loads(await self._ask(method, path, body, content))
        return found

    async def text(self, path: str) -> str:
        """A body that is not JSON, such as a container's log. Raises as `ask`."""
        return (await self._ask("GET", path, None, _JSON)).decode(errors="replace")

    async def _ask(self, method: str, path: str, body: Json | None, content: str) -> bytes:
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": content}
        async with self._session.request(method, path, data=data, headers=headers) as answer:
            text = await answer.read()
        if answer.status >= 300:
            raise ApiError(answer.status, f"{method} {path}: {text.decode(errors='replace')}")
        return text


async def each(what: Iterable[_T], act: Callable[[_T], Awaitable[None]]) -> None:
    """Apply `act` to each, several at once. The first failure is raised once running calls have
    ended."""
    left = iter(what)

    async def work() -> None:
        for one in left:
            await act(one)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())
