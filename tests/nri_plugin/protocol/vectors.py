"""Bytes recorded from real sockets, and the helper that feeds them with every split.

GO_STUB_REGISTER and GO_CONFIGURE were recorded between the Go stub and NRI 0.12.0; the CONTAINERD
ones between containerd 2.4.2 (NRI 0.12.3) and this package. DIALOGUES contain all that the
adaptation of an NRI version wrote, from the answer to the registration to the end: one pod and one
container synchronised, then a container's creation, validation, start, stop and removal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GO_STUB_REGISTER = (
    bytes.fromhex("0000000200000055" + "0000004b000000010100" + "0a1c")
    + b"nri.pkg.api.v1alpha1.Runtime"
    + bytes.fromhex("120e")
    + b"RegisterPlugin"
    + bytes.fromhex("1a150a06")
    + b"goplug"
    + bytes.fromhex("12023130" + "1a07")
    + b"v0.12.0"
    + bytes.fromhex("209be681d012")
)
REGISTER_OK = bytes.fromhex("000000020000000a" + "00000000000000010200")
GO_CONFIGURE = (
    bytes.fromhex("000000010000005d" + "00000053000000010100" + "0a1b")
    + b"nri.pkg.api.v1alpha1.Plugin"
    + bytes.fromhex("1209")
    + b"Configure"
    + bytes.fromhex("1a23120a")
    + b"containerd"
    + bytes.fromhex("1a06")
    + b"v9.9.9"
    + bytes.fromhex("20882728d00f3207")
    + b"v0.12.0"
    + bytes.fromhex("209be681d012")
)
CONFIGURE_REPLY_EVENTS_8 = bytes.fromhex("000000010000000e" + "00000004000000010200" + "12021008")
SYNCHRONIZE_REPLY = bytes.fromhex("000000010000000a" + "00000000000000030200")
REGISTER_GPUSHARE = bytes.fromhex(
    "000000020000004e000000440000000101000a1c6e72692e706b672e6170692e7631616c706861312e52756e74"
    "696d65120e5265676973746572506c7567696e1a0e0a086770757368617265120231302080e497d012"
)
ERROR_NO_ON_7 = bytes.fromhex("0000000100000012000000080000000702000a06080212026e6f")

CONTAINERD_CONFIGURE = bytes.fromhex(
    "00000001000000640000005a0000000101000a1b6e72692e706b672e6170692e7631616c706861312e506c7567"
    "696e1209436f6e6669677572651a2a120a636f6e7461696e6572641a0d322e342e322b756e6b6e6f776e208827"
    "28d00f320776302e31322e3320d99fd4b907"
)
CONTAINERD_SYNCHRONIZE = bytes.fromhex(
    "000000010000003a000000300000000301000a1b6e72692e706b672e6170692e7631616c706861312e506c7567"
    "696e120b53796e6368726f6e697a65209b9ed3b907"
)

RECORDED = {
    "stub-register": GO_STUB_REGISTER,
    "register-ok": REGISTER_OK,
    "configure": GO_CONFIGURE,
    "configure-reply": CONFIGURE_REPLY_EVENTS_8,
    "synchronize-reply": SYNCHRONIZE_REPLY,
    "register-gpushare": REGISTER_GPUSHARE,
    "error-reply": ERROR_NO_ON_7,
    "containerd-configure": CONTAINERD_CONFIGURE,
    "containerd-synchronize": CONTAINERD_SYNCHRONIZE,
}

DIALOGUES = {
    path.stem: bytes.fromhex(path.read_text())
    for path in sorted((Path(__file__).parent / "recorded").glob("*.hex"))
}


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    for i in range(len(data)):
        yield data[i : i + 1]


def in_sevens(data: bytes) -> Iterator[bytes]:
    for i in range(0, len(data), 7):
        yield data[i : i + 7]


CUTS: list[Callable[[bytes], Iterator[bytes]]] = [whole, byte_by_byte, in_sevens]


def fed(feed: Callable[[bytes], list[T]], pieces: Iterator[bytes]) -> list[T]:
    """Everything that `feed` yields over the pieces, in order."""
    return [value for piece in pieces for value in feed(piece)]


def split_frames(data: bytes) -> Iterator[bytes]:
    """The mux frames of a recording: what a runtime does not send before it is answered."""
    while data:
        end = 8 + int.from_bytes(data[4:8])
        yield data[:end]
        data = data[end:]
