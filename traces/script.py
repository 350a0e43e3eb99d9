"""The script: a binary form of one process's trace, which c/replay.c maps and executes.

A script has operations, steps and runs. An operation is a call with its arguments, and equal calls
are one operation. A step is the number of an operation, and the steps have the order of the trace.
A run is a sequence of steps of one thread. c/script.h has the same layout.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_MAGIC: Final = 0x6770737472616365
_HEADER: Final = struct.Struct("<16Q")
_ENTRY: Final = struct.Struct("<QQII")
_OPERATION: Final = struct.Struct("<IiIIIBBBB")
_ARGUMENT: Final = struct.Struct("<IIQ")
_RESULT: Final = struct.Struct("<BBBxIQQ")
_PATCH: Final = struct.Struct("<QIIQ")
_RUN: Final = struct.Struct("<5I")
_MASK: Final = 2**64 - 1


class Kind(enum.IntEnum):
    """Where the value of an argument comes from."""

    VALUE = 0
    SLOT = 1
    """A value that an earlier call returned, plus an offset."""
    DATA = 2
    """The address of the script's data, plus an offset."""
    CELL = 3
    """The address of a variable, which is set to `value` before the call."""
    BUFFER = 4
    """The address of a buffer that replaces the program's host memory."""
    IMAGE = 5
    """The address of the code that replaces the program's modules."""
    POINTERS = 6
    """The address of an array of pointers, each to different memory."""


class Action(enum.IntEnum):
    """What the replay does with a value that the driver wrote: store it in a slot, or compare it
    with the recorded value or with a slot."""

    IGNORE = 0
    STORE = 1
    EQUAL = 2
    EQUAL_SLOT = 3
    EQUAL_SIZE = 4
    """Compare the value if the limit is the recorded GPU's size. `offset` is the tolerance."""


class Argument(NamedTuple):
    kind: Kind
    value: int = 0
    slot: int = 0


class Result(NamedTuple):
    """What the replay does with a value that the driver wrote to the variable of a CELL."""

    action: Action
    argument: int
    size_bytes: int
    recorded: int
    slot: int = 0
    offset: int = 0


class Patch(NamedTuple):
    """A value that is written into the script's data at offset `at` before the call."""

    at: int
    argument: Argument


class Run(NamedTuple):
    thread: int
    first: int
    steps: int
    turn: int
    """The run's number in the order of all runs of all processes."""
    checkpoint: bool


@dataclass
class Script:
    """The script of one process. Call `encode` after all operations, steps and runs were added."""

    steps: array[int] = field(default_factory=lambda: array("I"))
    runs: list[Run] = field(default_factory=list)
    slots: int = 0
    buffer_bytes: int = 4096
    _entries: dict[tuple[str, str, int, bool], int] = field(default_factory=dict)
    _operations: dict[bytes, int] = field(default_factory=dict)
    _packed: list[bytes] = field(default_factory=list)
    _arguments: list[bytes] = field(default_factory=list)
    _results: list[bytes] = field(default_factory=list)
    _patches: list[bytes] = field(default_factory=list)
    _data: bytearray = field(default_factory=bytearray)
    _placed: dict[bytes, int] = field(default_factory=dict)

    def slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def entry(self, name: str, base: str, version: int, per_thread: bool) -> int:
        """Return the number of an entry. base: its name in cuGetProcAddress at that version."""
        return self._entries.setdefault((name, base, version, per_thread), len(self._entries))

    def data(self, content: bytes) -> int:
        """Return the offset of these bytes in the data. Equal bytes are stored once."""
        if content not in self._placed:
            self._placed[content] = self.place(content)
        return self._placed[content]

    def place(self, content: bytes) -> int:
        """Append these bytes to the data, and return their offset."""
        at = len(self._data)
        self._data += content.ljust(-(-len(content) // 8) * 8, b"\0")
        return at

    def operation(
        self,
        entry: int,
        result: int,
        arguments: Sequence[Argument],
        results: Sequence[Result] = (),
        patches: Sequence[Patch] = (),
        *,
        is_compared: bool = True,
    ) -> int:
        """Return the number of the operation. Equal operations have the same number."""
        packed = [_ARGUMENT.pack(kind, slot, value & _MASK) for kind, value, slot in arguments]
        written = [
            _RESULT.pack(action, argument, size, slot, recorded & _MASK, offset & _MASK)
            for action, argument, size, recorded, slot, offset in results
        ]
        patched = [
            _PATCH.pack(at, kind, slot, value & _MASK) for at, (kind, value, slot) in patches
        ]
        key = b"".join((struct.pack("<Ii", entry, result), *packed, *written, *patched))
        if key not in self._operations:
            self._operations[key] = len(self._packed)
            firsts = (len(each) for each in (self._arguments, self._results, self._patches))
            counts = (len(each) for each in (packed, written, patched))
            self._packed.append(_OPERATION.pack(entry, result, *firsts, *counts, is_compared))
            self._arguments += packed
            self._results += written
            self._patches += patched
        return self._operations[key]

    def encode(self, image: bytes) -> bytes:
        """Return the file that c/replay.c maps. image: the code of every module."""
        image_at = self.place(image)
        entries = [
            _ENTRY.pack(
                self.data(name.encode() + b"\0"),
                self.data(base.encode() + b"\0"),
                version,
                per_thread,
            )
            for name, base, version, per_thread in self._entries
        ]
        parts = [
            (len(entries), b"".join(entries)),
            (len(self._packed), b"".join(self._packed)),
            (len(self._arguments), b"".join(self._arguments)),
            (len(self._results), b"".join(self._results)),
            (len(self._patches), b"".join(self._patches)),
            (len(self.steps), self.steps.tobytes()),
            (len(self.runs), b"".join(_RUN.pack(*run) for run in self.runs)),
            (len(self._data), bytes(self._data)),
        ]
        at, head, body = _HEADER.size, [_MAGIC, self.slots, self.buffer_bytes, image_at], b""
        threads = max((run.thread for run in self.runs), default=1)
        offsets = []
        for count, content in parts:
            offsets.append(at << 32 | count)
            padded = content.ljust(-(-len(content) // 8) * 8, b"\0")
            body += padded
            at += len(padded)
        return _HEADER.pack(*head, threads, *offsets, 0, 0, 0) + body
