"""Files of an image, which its author controls: its entry point and its preload list.

Documented exceptions: none. Invariants: no more of a program is read than its headers need, and our
library is first in the list, whatever follows it.
"""

from __future__ import annotations

from typing import Final

from nri_plugin.host import entrypoint
from nri_plugin.policy import preload_list

_OURS: Final = b"/.gpuslice/libvgpu.so\n"
_READ_MOST: Final = 16 << 10
_MACHINE: Final = 62


def programs(data: bytes) -> None:
    asked = 0

    def read(offset: int, size: int) -> bytes:
        nonlocal asked
        assert offset >= 0 and size >= 0
        asked += size
        return data[offset : offset + size]

    found = entrypoint.parse(read)
    assert asked <= _READ_MOST
    if isinstance(found, entrypoint.Program):
        why = entrypoint.program_out_of_reach(found, "program", "loader", _MACHINE, forwarded=False)
        assert why or (found.wide and found.machine == _MACHINE and found.interpreter)


def preload_files(data: bytes) -> None:
    theirs = preload_list.entries(data)
    merged = preload_list.merged(_OURS, theirs)
    read = preload_list.entries(merged)
    assert read[0] == _OURS.strip()
    assert set(read) == {*theirs, read[0]}
    assert preload_list.merged(merged, theirs) == merged
