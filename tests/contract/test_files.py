"""The files `grant` and `region`: layouts that match C's, writers that may be killed at any
byte."""

from __future__ import annotations

import binascii
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import grant_file, names, region_file
from gpuslice.contract.grant_file import Gpu, Grant
from gpuslice.contract.layout import Field, Struct, Write
from tests.contract.writes import apply
from tests.support import ROOT
from tools import cheader

HEADER = ROOT / "shim/include/vgpu/contract.h"

gpus = st.builds(
    Gpu,
    st.text("0123456789abcdefGPU-", min_size=1, max_size=47),
    st.integers(0, 2**64 - 1),
    st.integers(0, 100),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
grants = st.builds(
    Grant, st.integers(0, 2**64 - 1), st.lists(gpus, min_size=1, max_size=16).map(tuple)
)


def test_the_c_header_is_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cheader", str(tmp_path)])
    cheader.main()
    assert HEADER.read_text() == tmp_path.joinpath("contract.h").read_text()


@given(grants, grants)
def test_a_grant_reads_back_and_changes_in_place(old: Grant, new: Grant) -> None:
    data = grant_file.fresh(old)
    assert len(data) == grant_file.FILE_BYTES
    assert grant_file.decode(data) == old
    assert grant_file.decode(apply(data, list(grant_file.update(data, new)))) == new


@given(grants, grants, st.data())
def test_a_writer_killed_anywhere_leaves_the_old_grant_or_the_new(
    old: Grant, new: Grant, data: st.DataObject
) -> None:
    before = apply(grant_file.fresh(old), list(grant_file.update(grant_file.fresh(old), old)))
    writes = list(grant_file.update(before, new))
    whole = data.draw(st.integers(0, len(writes)))
    torn = apply(before, writes[:whole])
    if whole < len(writes):
        cut = data.draw(st.integers(0, len(writes[whole].data)))
        partial = Write(writes[whole].offset, writes[whole].data[:cut])
        torn = apply(torn, [partial])
    assert grant_file.decode(torn) in (old, new)
    assert grant_file.decode(apply(torn, list(grant_file.update(torn, new)))) == new


def test_a_grant_of_an_older_writer_has_no_size_of_contexts() -> None:
    """The field lies where older writers left zeros, and older readers do not read it."""
    said = grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3, context_bytes=5),)))
    before = grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3),)))
    at = grant_file.HEAD.size + 80
    assert (said[at : at + 8], before[at : at + 8]) == (bytes([5, *[0] * 7]), bytes(8))
    for data, context_bytes in ((said, 5), (before, 0)):
        read = grant_file.decode(data)
        assert read is not None and read.gpus[0].context_bytes == context_bytes


def test_a_reader_never_sees_a_new_sequence_before_its_content() -> None:
    data = grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3),)))
    content, sequence = grant_file.update(data, Grant(1, (Gpu("GPU-a", 9, 2, 3),)))
    assert (len(sequence.data), content.offset) == (8, sequence.offset + 8)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (8, b"X"),
        (16, b"\x09"),
        (20, b"\x00"),
        (20, b"\x11"),
        (grant_file.HEAD.size, b"Y"),
        (grant_file.CHECKSUM_OFFSET, b"\xff\xff"),
    ],
)
def test_a_changed_byte_makes_a_copy_invalid(where: int, value: bytes) -> None:
    data = apply(grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3),))), [Write(where, value)])
    assert grant_file.decode(data) is None


@pytest.mark.parametrize("field", ["version", "gpu_count"])
def test_a_copy_of_another_version_is_not_read(field: str) -> None:
    body = bytearray(grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3),))))
    struct.pack_into("<I", body, grant_file.HEAD.offset(field), 17)
    end = grant_file.CHECKSUM_OFFSET
    struct.pack_into("<I", body, end, binascii.crc32(body[:end]))
    assert grant_file.decode(bytes(body)) is None


@pytest.mark.parametrize("data", [b"", b"x", bytes(grant_file.FILE_BYTES)])
def test_no_valid_copy(data: bytes) -> None:
    assert grant_file.decode(data) is None


@pytest.mark.parametrize(
    "grant",
    [
        Grant(1, ()),
        Grant(1, (Gpu("GPU-a", 1, 2, 3),) * 17),
        Grant(1, (Gpu("", 1, 2, 3),)),
        Grant(1, (Gpu("x" * 48, 1, 2, 3),)),
    ],
)
def test_a_grant_that_does_not_fit_is_refused(grant: Grant) -> None:
    with pytest.raises(ValueError, match="must "):
        grant_file.fresh(grant)


@pytest.mark.parametrize("count", range(1, names.MAX_GPUS + 1))
def test_region_geometry(count: int) -> None:
    data = region_file.fresh(count, 7)
    geometry = region_file.Geometry(count)
    assert len(data) == geometry.file_bytes
    assert region_file.uses(data) == (region_file.GpuUse(0, 0, 0),) * count
    for offset in (geometry.slots_offset, geometry.slot_stride, geometry.gpu_offset(count - 1)):
        assert offset % 64 == 0


@pytest.mark.parametrize("count", [0, 17])
def test_region_of_an_impossible_number_of_gpus(count: int) -> None:
    with pytest.raises(ValueError, match="must "):
        region_file.fresh(count, 7)


def patched(field: str, value: int) -> bytes:
    data = bytearray(region_file.fresh(1, 7))
    struct.pack_into("<I", data, region_file.HEADER.offset(field), value)
    end = region_file.HEADER.size - 4
    struct.pack_into("<I", data, end, binascii.crc32(data[:end]))
    return bytes(data)


BROKEN = [
    (b"", "truncated"),
    (region_file.fresh(1, 7)[:200], "truncated"),
    (b"x" + region_file.fresh(1, 7)[1:], "checksum"),
    (patched("version", 4), "version 4"),
    (patched("version", 6), "version 6"),
    (patched("gpu_count", 0), "gpu_count 0"),
    (patched("gpu_count", 17), "gpu_count 17"),
    (region_file.fresh(1, 7)[: region_file.HEADER.size], "GPU records"),
]


@pytest.mark.parametrize(("data", "reason"), BROKEN, ids=[r for _, r in BROKEN])
def test_a_region_that_a_tenant_broke(data: bytes, reason: str) -> None:
    with pytest.raises(region_file.RegionError, match=reason):
        region_file.uses(data)


LAYOUT = Struct("s", "", (Field("uint32_t", "a"), Field("char", "reserved_b", "", 4)))


def test_layout_table() -> None:
    assert LAYOUT.pack({"a": 1}) == b"\1\0\0\0\0\0\0\0"
    with pytest.raises(ValueError, match=r"\['c'\]"):
        LAYOUT.pack({"a": 1, "c": 2})
    with pytest.raises(KeyError):
        LAYOUT.offset("c")
