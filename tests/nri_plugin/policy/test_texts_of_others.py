"""The parsers of the kernel's mountinfo, and of preload lists as glibc reads them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.host import preload_list
from nri_plugin.policy import mountinfo
from nri_plugin.policy.mountinfo import Limits, Location

OURS = {"/.gpuslice", "/.gpuslice/libvgpu.so", "/.gpuslice/region", "/etc/ld.so.preload"}
GRANT = "40 30 0:99 {} {} rw,nosuid shared:7 - tmpfs gpuslice rw,size=640k"
LIBRARY = "41 30 8:1 /opt/store/abc/libvgpu.so /.gpuslice/libvgpu.so ro,nosuid - ext4 /dev/sda1 rw"
TEXT = f"""\
30 20 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/a
31 30 0:60 / /dev rw,nosuid - tmpfs tmpfs rw
{GRANT.format("/", "/.gpuslice")}
{GRANT.format("/region", "/.gpuslice/region")}
{LIBRARY}
{GRANT.format("/preload", "/etc/ld.so.preload")}
"""
RUN, STORE = Location("0:24", "/gpuslice"), Location("8:1", "/opt/store")
LIMITS = Limits(RUN, STORE, Location("0:24", "/nri/nri.sock"))
HOST_RUN = "50 30 0:24 {} {} ro,nosuid - tmpfs tmpfs rw"
HOST_DISK = "50 30 8:1 {} {} rw - ext4 /dev/sda1 rw"
LIBRARY_AT_X = LIBRARY.replace("/.gpuslice/", "/x/")
CASES = {
    "nothing more": ("", ""),
    "a grant elsewhere": (GRANT.format("/", "/host/run/gpuslice/c0"), "/host/run/gpuslice/c0"),
    "the run directory, with no grant in it yet": (HOST_RUN.format("/gpuslice", "/x"), "/x"),
    "above the run directory": (HOST_RUN.format("/", "/x"), "/x"),
    "in the run directory": (HOST_RUN.format("/gpuslice/.lock", "/x"), "/x"),
    "NRI's socket": (HOST_RUN.format("/nri/nri.sock", "/x"), "/x"),
    "beside the run directory": (HOST_RUN.format("/gpuslice2", "/x"), ""),
    "another release's library, writable": (HOST_DISK.format("/opt/store/def/l.so", "/x"), "/x"),
    "the whole host": (HOST_DISK.format("/", "/host"), "/host"),
    "the library, writable": (LIBRARY_AT_X.replace(" ro,", " rw,"), "/x/libvgpu.so"),
    "the store, to read": ("50 30 8:1 /opt/store /x ro - ext4 /dev/sda1 rw", ""),
    "the library's copy to see": (LIBRARY.replace("/.gpuslice/", "/usr/local/vgpu/"), ""),
    "another disk": ("50 30 8:2 / /x rw - ext4 /dev/sda2 rw", ""),
    "the store's tmpfs, to read": ("50 30 0:70 / /x ro - tmpfs gpuslice-store rw", ""),
    "another program's tmpfs": ("50 30 0:70 / /x rw - tmpfs gpuslices rw", ""),
    "not a line": ("50 30 8:1 / /host rw", ""),
}


@pytest.mark.parametrize(("line", "where"), CASES.values(), ids=CASES)
def test_shown(line: str, where: str) -> None:
    lines = list(mountinfo.parse(f"{TEXT}{line}"))
    assert mountinfo.shown(lines, OURS, LIMITS) == where


def test_grants_are_found_without_information_about_the_host() -> None:
    lines = list(mountinfo.parse(GRANT.format("/", "/x")))
    assert mountinfo.shown(lines, frozenset(), Limits(None, None)) == "/x"


HOST = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:24 / /run rw - tmpfs tmpfs rw
22 20 8:2 /@data /srv rw - btrfs /dev/sdb rw
23 21 0:30 / /run/gpuslice rw - tmpfs below rw
24 21 0:31 / /run/gpuslice rw - tmpfs above rw
"""
HELD = {
    "/opt/store": Location("8:1", "/opt/store"),
    "/run": Location("0:24", "/"),
    "/run/x": Location("0:24", "/x"),
    "/runs": Location("8:1", "/runs"),
    "/srv/a/b": Location("8:2", "/@data/a/b"),
    "/run/gpuslice": Location("0:31", "/"),
}


@pytest.mark.parametrize(("path", "location"), HELD.items())
def test_where_a_path_of_the_host_lies(path: str, location: Location) -> None:
    assert mountinfo.location_of(list(mountinfo.parse(HOST)), path) == location
    assert mountinfo.location_of([], path) is None


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    assert mountinfo.shown(list(mountinfo.parse(text)), OURS, LIMITS) == ""


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\\")))
def test_what_the_kernel_escapes_is_read_back(name: str) -> None:
    point = f"/{name} \t\n\\"
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in point)
    (line,) = mountinfo.parse(GRANT.format("/", escaped))
    assert line.point == point


# --- preload lists, parsed as glibc's loader parses them; ours comes first whatever is added

FIRST = b"/.gpuslice/libvgpu.so\n"

PRELOADS = {
    "nothing": (b"", []),
    "lines": (b"/a.so\n/b.so\n", [b"/a.so", b"/b.so"]),
    "no end of line": (b"/a.so", [b"/a.so"]),
    "every separator": (b"/a.so /b.so\t/c.so:/d.so\n\n:", [b"/a.so", b"/b.so", b"/c.so", b"/d.so"]),
    "a comment": (b"# /a.so\n/b.so # /c.so\n/d.so#/e.so", [b"/b.so", b"/d.so"]),
    "a NUL ends it": (b"/a.so\0/b.so\n/c.so", [b"/a.so"]),
    "a NUL in a comment does not": (b"#\0\n/b.so", [b"/b.so"]),
    "carriage returns are letters": (b"/a.so\r\n", [b"/a.so\r"]),
}


@pytest.mark.parametrize(("data", "found"), PRELOADS.values(), ids=PRELOADS)
def test_the_entries_of_a_preload_list(data: bytes, found: Sequence[bytes]) -> None:
    assert list(preload_list.entries(data)) == found


@given(st.binary())
def test_whatever_is_added_ours_is_first_and_theirs_keep_their_order(data: bytes) -> None:
    theirs = preload_list.entries(data)
    merged = preload_list.merged(FIRST, theirs)
    assert merged.startswith(FIRST)
    read = preload_list.entries(merged)
    assert read[0] == FIRST.strip()
    assert list(read[1:]) == [n for n in dict.fromkeys(theirs) if n != read[0]]
    assert preload_list.merged(merged, theirs) == merged
