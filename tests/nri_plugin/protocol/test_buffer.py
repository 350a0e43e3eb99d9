"""nri_plugin.protocol.buffer: a parser sees the same stream, however it is split."""

from __future__ import annotations

import pytest

from nri_plugin.protocol.buffer import Parser, Steps
from nri_plugin.protocol.errors import LocalProtocolError, RemoteProtocolError


class Strings(Parser[bytes]):
    """`[length u8][bytes]`, at most nine bytes; a zero length takes the available bytes, up to
    four."""

    def _grammar(self) -> Steps[None]:
        while True:
            (length,) = yield from self._exactly(1, 1)
            if length:
                self._emit((yield from self._exactly(length, 9)))
            else:
                self._emit((yield from self._at_most(4)))


def test_values_come_when_complete_and_only_then() -> None:
    parser = Strings()
    assert parser.feed(b"") == []
    assert parser.feed(b"\x03ab") == []
    assert parser.feed(b"c\x01d\x02") == [b"abc", b"d"]
    assert parser.feed(b"ef") == [b"ef"]


def test_at_most_gives_what_is_there() -> None:
    parser = Strings()
    assert parser.feed(b"\x00") == []
    assert parser.feed(b"xyz") == [b"xyz"]
    assert parser.feed(b"\x00abcd\x01e") == [b"abcd", b"e"]


def test_what_is_consumed_is_not_kept() -> None:
    parser = Strings()
    for _ in range(1000):
        parser.feed(b"\x09abcdefghi\x09a")
        parser.feed(b"bcdefghi")
    assert len(parser._buffer) == 0


def test_a_number_over_the_limit_breaks_the_stream_for_good() -> None:
    parser = Strings()
    with pytest.raises(RemoteProtocolError, match="10 bytes where at most 9"):
        parser.feed(b"\x0a")
    with pytest.raises(LocalProtocolError, match="broke before"):
        parser.feed(b"\x01a")
