"""The files `grant`, `region` and `lease` have the layouts of the C code.

A writer may be killed at any byte. A reader sees the old content or the new.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.grant_file import Gpu, Grant, Policy
from gpuslice.contract.layout import Write
from gpuslice.contract.lease_file import Lease
from tests.support import ROOT
from tools import cheader

longs = st.integers(0, 2**64 - 1)
gpus = st.builds(
    Gpu,
    st.text("0123456789abcdefGPU-", min_size=1, max_size=47),
    longs,
    st.integers(0, 100),
    st.integers(0, 2**32 - 1),
    longs,
    longs,
    managed_free=st.booleans(),
    policy=st.sampled_from(Policy),
)
grants = st.builds(Grant, longs, st.lists(gpus, min_size=1, max_size=16).map(tuple))
parts = st.integers(0, lease_file.WHOLE_PPM)
words = st.integers(0, 2**32 - 1)
leases = st.builds(Lease, *[longs] * 5, words, words, parts, parts, st.booleans())

A = Gpu("GPU-a", 1, 2, 3)
GRANT, LEASE = Grant(1, (A,)), Lease(1)
DATA = grant_file.fresh(GRANT)
REGION = region_file.fresh(1, 7)


def apply(data: bytes, writes: Iterable[Write]) -> bytes:
    buffer = bytearray(data)
    for write in writes:
        buffer[write.offset : write.offset + len(write.data)] = write.data
    return bytes(buffer)


def torn(before: bytes, writes: Sequence[Write], data: st.DataObject) -> bytes:
    """Return the file after its writer was killed at an arbitrary byte."""
    whole = data.draw(st.integers(0, len(writes) - 1))
    cut = data.draw(st.integers(0, len(writes[whole].data)))
    partial = Write(writes[whole].offset, writes[whole].data[:cut])
    return apply(before, [*writes[:whole], partial])


def test_the_c_header_is_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cheader", str(tmp_path)])
    cheader.main()
    committed = ROOT / "shim/include/vgpu/contract.h"
    assert committed.read_text() == (tmp_path / "contract.h").read_text()


@given(grants, grants)
def test_a_grant_reads_back_and_changes_in_place(old: Grant, new: Grant) -> None:
    data = grant_file.fresh(old)
    assert len(data) == grant_file.FILE_BYTES
    assert grant_file.decode(data) == old
    assert grant_file.decode(apply(data, grant_file.update(data, new))) == new


@given(grants, grants, st.data())
def test_a_writer_killed_anywhere_leaves_the_old_grant_or_the_new(
    old: Grant, new: Grant, data: st.DataObject
) -> None:
    before = apply(grant_file.fresh(old), grant_file.update(grant_file.fresh(old), old))
    left = torn(before, grant_file.update(before, new), data)
    assert grant_file.decode(left) in (old, new)
    assert grant_file.decode(apply(left, grant_file.update(left, new))) == new


def test_a_grant_of_an_older_writer_has_no_size_of_contexts() -> None:
    """Older writers left zeros in this field, and older readers do not read it."""
    said = grant_file.fresh(Grant(1, (Gpu("GPU-a", 1, 2, 3, context_bytes=5),)))
    at = grant_file.HEAD.size + 80
    assert (said[at : at + 8], DATA[at : at + 8]) == (bytes([5, *[0] * 7]), bytes(8))
    for data, context_bytes in ((said, 5), (DATA, 0)):
        read = grant_file.decode(data)
        assert read is not None and read.gpus[0].context_bytes == context_bytes


@pytest.mark.parametrize(
    ("policy", "flags", "limited"),
    [
        (Policy.FAIR, 0, False),
        (Policy.CAPPED, 2, False),
        (Policy.TURNS, 4, True),
        (Policy.BACKGROUND, 8, True),
    ],
)
def test_a_policy_is_one_flag(policy: Policy, flags: int, limited: bool) -> None:
    """Older writers know the flags 0 and 2 only."""
    gpu = Gpu("GPU-a", 1, 100, 3, policy=policy)
    at = grant_file.HEAD.size + grant_file.GPU.offset("flags")
    assert grant_file.fresh(Grant(1, (gpu,)))[at : at + 4] == bytes([flags, 0, 0, 0])
    assert gpu.core_limited is limited and Gpu("GPU-a", 1, 99, 3, policy=policy).core_limited


@pytest.mark.parametrize("writes", [grant_file.update(DATA, GRANT), lease_file.update(3, 7, LEASE)])
def test_a_reader_never_sees_a_new_sequence_before_its_content(writes: Sequence[Write]) -> None:
    content, sequence = writes
    assert (len(sequence.data), content.offset) == (8, sequence.offset + 8)


def _resealed(data: bytes, offset: int, value: int, end: int) -> bytes:
    """Return the file with the number `value` at `offset`, and a matching checksum at `end`."""
    changed = bytearray(data)
    struct.pack_into("<I", changed, offset, value)
    struct.pack_into("<I", changed, end, binascii.crc32(changed[:end]))
    return bytes(changed)


CHANGES = [
    *((8, b"X"), (16, b"\x09"), (20, b"\x00"), (20, b"\x11")),
    *((grant_file.HEAD.size, b"Y"), (grant_file.CHECKSUM_OFFSET, b"\xff\xff")),
]
INVALID = [
    *(b"", b"x", bytes(grant_file.FILE_BYTES)),
    *(apply(DATA, [Write(at, value)]) for at, value in CHANGES),
    *(
        _resealed(DATA, grant_file.HEAD.offset(field), 17, grant_file.CHECKSUM_OFFSET)
        for field in ("version", "gpu_count")
    ),
]


@pytest.mark.parametrize("data", INVALID, ids=range(len(INVALID)))
def test_a_copy_that_is_damaged_or_of_another_version_is_not_read(data: bytes) -> None:
    assert grant_file.decode(data) is None


@pytest.mark.parametrize("gpus", [(), (A,) * 17, (Gpu("", 1, 2, 3),), (Gpu("x" * 48, 1, 2, 3),)])
def test_a_grant_that_does_not_fit_is_refused(gpus: tuple[Gpu, ...]) -> None:
    with pytest.raises(ValueError, match="must "):
        grant_file.fresh(Grant(1, gpus))


@pytest.mark.parametrize("count", range(1, names.MAX_GPUS + 1))
def test_region_geometry(count: int) -> None:
    data = region_file.fresh(count, 7)
    geometry = region_file.Geometry(count)
    assert len(data) == geometry.file_bytes
    assert region_file.uses(data) == (region_file.GpuUse(0, 0, 0),) * count
    for offset in (geometry.slots_offset, geometry.slot_stride, geometry.gpu_offset(count - 1)):
        assert offset % 64 == 0


_NUMBERS = (("version", 4), ("version", 6), ("gpu_count", 0), ("gpu_count", 17))
_HEADER = region_file.HEADER
BROKEN = [
    (b"", "truncated"),
    (REGION[:200], "truncated"),
    (b"x" + REGION[1:], "checksum"),
    (REGION[: _HEADER.size], "GPU records"),
    *(
        (_resealed(REGION, _HEADER.offset(field), value, _HEADER.size - 4), f"{field} {value}")
        for field, value in _NUMBERS
    ),
]


@pytest.mark.parametrize(("data", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_region_that_a_tenant_broke(data: bytes, reason: str) -> None:
    with pytest.raises(region_file.RegionError, match=reason):
        region_file.uses(data)


# --- the lease


@given(st.lists(leases, min_size=1, max_size=4), st.integers(0, 15))
def test_the_newest_lease_is_read_back(written: list[Lease], gpu: int) -> None:
    data = lease_file.fresh(16, launches_checked=True)
    assert len(data) == lease_file.FILE_BYTES
    assert lease_file.decode(data, gpu) is None
    for number, lease in enumerate(written, 1):
        data = apply(data, lease_file.update(gpu, number, lease))
    assert lease_file.decode(data, gpu) == (len(written), written[-1])
    assert all(lease_file.decode(data, other) is None for other in range(16) if other != gpu)


@given(leases, leases, st.data())
def test_a_writer_killed_anywhere_leaves_the_old_lease_or_the_new(
    old: Lease, new: Lease, data: st.DataObject
) -> None:
    before = apply(lease_file.fresh(1, launches_checked=True), lease_file.update(0, 1, old))
    left = torn(before, lease_file.update(0, 2, new), data)
    assert lease_file.decode(left, 0) in ((1, old), (2, new))


@pytest.mark.parametrize(("in_flight_us", "contended"), [(3_000, 1), (20_000, 0)])
def test_a_lease_for_an_older_library_has_its_layout(in_flight_us: int, contended: int) -> None:
    lease = Lease(1, 2, 3, 4, 5, 6, in_flight_us, 7, 8)
    data = apply(lease_file.fresh(2, launches_checked=True), lease_file.update(1, 9, lease, 1))
    record = data[64 + 3 * 64 :][:64]
    assert struct.unpack("<4Q4I", record[:48]) == (9, 1, 2, 3, 7, 8, contended, 0)
    assert record[48:60] == bytes(12)
    assert lease_file.sequence(data, 1, 1) == 9 and lease_file.sequence(data, 0, 1) == 0


def test_launches_checked_is_one_aligned_word() -> None:
    data = lease_file.fresh(1, launches_checked=False)
    write = lease_file.check_launches(True)
    assert write.offset % 4 == 0 and len(write.data) == 4
    assert apply(data, [write]) == lease_file.fresh(1, launches_checked=True)


@pytest.mark.parametrize("count", [0, 17])
def test_files_of_an_impossible_number_of_gpus_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 16"):
        region_file.fresh(count, 7)
    with pytest.raises(ValueError, match="must be 1 to 16"):
        lease_file.fresh(count, launches_checked=True)
