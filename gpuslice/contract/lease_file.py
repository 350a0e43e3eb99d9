"""The file `lease`: when a container's programs may submit work to each GPU.

    header | one pair of records for each GPU of the grant, in the grant's order

The arbiter overwrites it in parts, tenants read it. A new record replaces the older one of its
pair: content and checksum are written first, the sequence number last. A writer killed at any step
leaves the newer record intact. To wait for a change, a reader waits by futex (on its read-only
mapping) on the low word of the sequence number of the record that will be written next.

A record holds the current window, [start_ns, end_ns). It also holds the container's own part of
each cycle, which is the window while the arbiter writes no records. Times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.layout import Field, Struct, Write, whole

MAGIC_BYTES: Final = b"gpslease"
MAGIC: Final = int.from_bytes(MAGIC_BYTES, "little")
VERSION: Final = 1
CYCLE_NS: Final = 100_000_000
"""Length of the cycle that the containers of a GPU divide by their shares."""
STALE_NS: Final = 500_000_000
"""Age at which a record becomes void. The container then uses its own part of each cycle."""
WHOLE_PPM: Final = 1_000_000

HEADER: Final = Struct(
    "vgpu_lease_header",
    "Start of the file.",
    (
        Field("uint64_t", "magic", "VGPU_LEASE_MAGIC"),
        Field("uint32_t", "version", "VGPU_LEASE_VERSION"),
        Field("uint32_t", "gpu_count", "as in the grant"),
        Field(
            "uint32_t",
            "launches_checked",
            "0: no container of its GPUs has a cap, launches need no check",
        ),
        Field("uint32_t", "reserved_pad", "zero"),
        Field("uint64_t", "reserved", "zero", 5),
    ),
)
RECORD: Final = Struct(
    "vgpu_lease_record",
    "One GPU's lease. In each pair the valid record with the higher number applies.",
    (
        Field("uint64_t", "sequence", "1, 2, ...; written last; 0: never written"),
        Field("uint64_t", "written_ns", "CLOCK_MONOTONIC; void after VGPU_LEASE_STALE_NS"),
        Field("uint64_t", "start_ns", "CLOCK_MONOTONIC; start and end 0: no window yet"),
        Field("uint64_t", "end_ns", "CLOCK_MONOTONIC"),
        Field("uint32_t", "share_ppm", "length of the container's own part of each cycle"),
        Field("uint32_t", "offset_ppm", "start of the container's own part in the cycle"),
        Field("uint32_t", "contended", "1: other containers wait, so keep little work in flight"),
        Field("uint32_t", "reserved_pad", "zero"),
        Field("uint64_t", "idle_ns", "time of contended windows without work of the container"),
        Field("uint32_t", "reserved_checksum_pad", "zero"),
        Field("uint32_t", "checksum", "CRC-32 (IEEE) of the record before it"),
    ),
)
FILE_BYTES: Final = 4096
_LAUNCHES_CHECKED_OFFSET: Final = HEADER.offset("launches_checked")


@dataclass(frozen=True, slots=True)
class Lease:
    """One GPU's lease. The attributes have the names and the order of the record's fields."""

    written_ns: int
    start_ns: int = 0
    end_ns: int = 0
    share_ppm: int = WHOLE_PPM
    offset_ppm: int = 0
    contended: bool = False
    idle_ns: int = 0


_in_order: Final = attrgetter(*(field.name for field in fields(Lease)))


def fresh(gpu_count: int, *, launches_checked: bool) -> bytes:
    """Return a complete new file whose GPUs have no lease yet."""
    if not 1 <= gpu_count <= names.MAX_GPUS:
        raise ValueError(f"{gpu_count} GPUs: must be 1 to {names.MAX_GPUS}")
    header = {
        "magic": MAGIC,
        "version": VERSION,
        "gpu_count": gpu_count,
        "launches_checked": int(launches_checked),
    }
    return HEADER.pack(header).ljust(FILE_BYTES, b"\0")


def is_readable(data: bytes) -> bool:
    """Return whether the data is a whole lease file of this version."""
    begins = struct.pack("<QI", MAGIC, VERSION)
    return len(data) == FILE_BYTES and data.startswith(begins)


def check_launches(launches_checked: bool) -> Write:
    """Return the write that turns the check of launches on or off."""
    return Write(_LAUNCHES_CHECKED_OFFSET, struct.pack("<I", launches_checked))


def update(gpu: int, sequence: int, lease: Lease) -> Sequence[Write]:
    """Return the writes for the GPU's next record. sequence: that of the last record, plus 1."""
    body = RECORD.pack_in_order(sequence, *_in_order(lease), 0)[:-4]
    record = body + binascii.crc32(body).to_bytes(4, "little")
    base = record_offset(gpu, sequence)
    return (Write(base + 8, record[8:]), Write(base, record[:8]))


def launches_are_checked(data: bytes) -> bool:
    """Return whether launches are checked. data: the file's start. False if it is too short."""
    return data[_LAUNCHES_CHECKED_OFFSET : _LAUNCHES_CHECKED_OFFSET + 4] not in (b"", bytes(4))


def record_offset(gpu: int, sequence: int) -> int:
    """Return the byte offset in the file of the GPU's record with this sequence number."""
    return HEADER.size + (2 * gpu + sequence % 2) * RECORD.size


assert record_offset(names.MAX_GPUS, 0) <= FILE_BYTES, "the records of all GPUs fit the file"


def decode(data: bytes, gpu: int) -> tuple[int, Lease] | None:
    """Return sequence number and lease of the GPU's newest valid record; None if none is valid."""
    valid = []
    for parity in (0, 1):
        at = record_offset(gpu, parity)
        body = data[at : at + RECORD.size]
        if body[-4:] != struct.pack("<I", binascii.crc32(body[:-4])):
            continue
        values = {name: whole(value) for name, value in RECORD.unpack(body).items()}
        number = values.pop("sequence")
        values.pop("checksum")
        contended = bool(values.pop("contended"))
        if number:
            valid.append((number, Lease(contended=contended, **values)))
    return max(valid, key=lambda each: each[0], default=None)
