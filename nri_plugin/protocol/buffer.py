"""A parser that can wait: bytes are fed as they come, values come out as they are complete.

A subclass writes its grammar as a generator that asks for bytes with `yield from`, and reads like
prose; `feed` runs it until it lacks some. Memory is bounded by construction: whatever is fed is
consumed at once, but for a piece shorter than what the grammar last asked for, and every request
states its limit. Knows no format; mux.py and ttrpc.py do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Generic, TypeVar

from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""A piece of grammar: suspends while bytes are missing, returns an R."""


class Parser(ABC, Generic[T]):
    """Turns a byte stream into values of type T."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parsed: list[T] = []
        self._steps = self._grammar()
        self._broken = False

    def feed(self, data: bytes) -> list[T]:
        """Take `data`, cut anywhere, and return what is complete with it.

        Raises RemoteProtocolError for bytes outside the grammar; the parser is then of no more use.
        """
        if self._broken:
            raise LocalProtocolError(
                "this byte stream broke before; nothing more can be read from it"
            )
        self._buffer += data
        try:
            next(self._steps)
        except RemoteProtocolError:
            self._broken = True
            raise
        parsed, self._parsed = self._parsed, []
        return parsed

    @abstractmethod
    def _grammar(self) -> Steps[None]:
        """The grammar: an endless generator that calls `_emit`."""

    def _emit(self, value: T) -> None:
        self._parsed.append(value)

    def _exactly(self, count: int, limit: int) -> Steps[bytes]:
        """The next `count` bytes. `limit` is for safety: a peer's number never sizes memory."""
        if count > limit:
            raise RemoteProtocolError(f"a piece of {count} bytes where at most {limit} are allowed")
        while len(self._buffer) < count:
            yield
        return self._cut(count)

    def _at_most(self, count: int) -> Steps[bytes]:
        """Some of the next `count` bytes: as many as are there, at least one."""
        while not self._buffer:
            yield
        return self._cut(count)

    def _cut(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken
