"""An incremental parser: takes bytes as they arrive and returns values as they are complete.

A subclass writes its grammar as a generator that requests bytes with `yield from`; `feed` runs it
until bytes are missing.
Invariant: memory is bounded. Input is consumed at once, except for a piece shorter than the
grammar's last request, and every request states its limit. mux.py and ttrpc.py define the formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Generic, TypeVar

from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""A part of a grammar: suspends while bytes are missing, returns an R."""


class Parser(ABC, Generic[T]):
    """Converts a byte stream to values of type T."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parsed: list[T] = []
        self._steps = self._grammar()
        self._broken = False

    def feed(self, data: bytes) -> list[T]:
        """Take `data`, split anywhere, and return the values that it completes.

        Raises RemoteProtocolError for bytes that violate the grammar; the parser is then unusable.
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
        """Read `count` bytes. `limit`: a peer's number must never determine the memory used."""
        if count > limit:
            raise RemoteProtocolError(f"a piece of {count} bytes where at most {limit} are allowed")
        while len(self._buffer) < count:
            yield
        return self._cut(count)

    def _at_most(self, count: int) -> Steps[bytes]:
        """Read 1 to `count` bytes: as many as are available."""
        while not self._buffer:
            yield
        return self._cut(count)

    def _cut(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken
