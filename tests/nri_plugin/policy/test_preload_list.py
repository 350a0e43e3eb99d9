"""Preload files are parsed as glibc's loader parses them, and ours comes first whatever is
added."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.policy import preload_list

OURS = b"/.gpuslice/libvgpu.so\n"
NAME = st.binary(min_size=1, max_size=20).filter(lambda name: not set(name) & set(b"\0#: \t\n"))

FILES = {
    "nothing": (b"", []),
    "lines": (b"/a.so\n/b.so\n", [b"/a.so", b"/b.so"]),
    "no end of line": (b"/a.so", [b"/a.so"]),
    "every separator": (b"/a.so /b.so\t/c.so:/d.so\n\n:", [b"/a.so", b"/b.so", b"/c.so", b"/d.so"]),
    "a comment": (b"# /a.so\n/b.so # /c.so\n/d.so#/e.so", [b"/b.so", b"/d.so"]),
    "a NUL ends it": (b"/a.so\0/b.so\n/c.so", [b"/a.so"]),
    "a NUL in a comment does not": (b"#\0\n/b.so", [b"/b.so"]),
    "carriage returns are letters": (b"/a.so\r\n", [b"/a.so\r"]),
}


@pytest.mark.parametrize(("data", "found"), FILES.values(), ids=FILES)
def test_entries(data: bytes, found: Sequence[bytes]) -> None:
    assert list(preload_list.entries(data)) == found


@given(st.binary())
def test_whatever_is_added_ours_is_first_and_theirs_keep_their_order(data: bytes) -> None:
    theirs = preload_list.entries(data)
    merged = preload_list.merged(OURS, theirs)
    assert merged.startswith(OURS)
    read = preload_list.entries(merged)
    assert read[0] == OURS.strip()
    assert list(read[1:]) == [n for n in dict.fromkeys(theirs) if n != read[0]]
    assert preload_list.merged(merged, theirs) == merged


@given(st.lists(NAME))
def test_names_survive_being_written_and_read(names: Sequence[bytes]) -> None:
    assert list(preload_list.entries(b"\n".join(names))) == names
