"""Bytes recorded from real sockets, and the helpers that cut them.

The CONTAINERD recordings were made between containerd 2.4.2 (NRI 0.12.3) and this package.
DIALOGUES has the bytes that the runtime's side (package adaptation) of each NRI version wrote after
the answer to the registration. It synchronised one pod and one container. Then it created,
validated, started, stopped and removed a container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

REGISTER_OK = bytes.fromhex("000000020000000a00000000000000010200")
SYNCHRONIZE_REPLY = bytes.fromhex("000000010000000a00000000000000030200")
REGISTER_GPUSHARE = bytes.fromhex(
    "000000020000004e000000440000000101000a1c6e72692e706b672e6170692e7631616c706861312e52756e7469"
    "6d65120e5265676973746572506c7567696e1a0e0a086770757368617265120231302080e497d012"
)
CONTAINERD_CONFIGURE = bytes.fromhex(
    "00000001000000640000005a0000000101000a1b6e72692e706b672e6170692e7631616c706861312e506c756769"
    "6e1209436f6e6669677572651a2a120a636f6e7461696e6572641a0d322e342e322b756e6b6e6f776e20882728d0"
    "0f320776302e31322e3320d99fd4b907"
)
CONTAINERD_SYNCHRONIZE = bytes.fromhex(
    "000000010000003a000000300000000301000a1b6e72692e706b672e6170692e7631616c706861312e506c756769"
    "6e120b53796e6368726f6e697a65209b9ed3b907"
)

DIALOGUES = {
    path.stem: bytes.fromhex(path.read_text())
    for path in sorted((Path(__file__).parent / "recorded").glob("*.hex"))
}

CUTS = [pytest.param(size, id=name) for name, size in (("whole", 1 << 30), ("1", 1), ("7", 7))]
"""Sizes of the pieces in which the bytes arrive."""


def fed(feed: Callable[[bytes], list[T]], data: bytes, cut: int) -> list[T]:
    """Return all that `feed` returns for the pieces of `data`, in order."""
    pieces = (data[at : at + cut] for at in range(0, len(data), cut))
    return [value for piece in pieces for value in feed(piece)]


def split_frames(data: bytes) -> Iterator[bytes]:
    """Yield a recording's mux frames. The runtime sent each after the previous answer."""
    while data:
        end = 8 + int.from_bytes(data[4:8])
        yield data[:end]
        data = data[end:]
