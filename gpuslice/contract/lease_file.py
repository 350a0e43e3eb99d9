"""The file `lease`: when a container's programs may submit work to each GPU.

    header | one pair of records for each GPU of the grant, in the grant's order

The arbiter overwrites it in parts, tenants read it. A new record replaces the older one of its
pair: content and checksum are written first, the sequence number last. A writer killed at any step
leaves the newer record intact. To wait for a change, a reader waits by futex (on its read-only
mapping) on the low word of the sequence number of the record that will be written next.

A record holds the current window, [start_ns, end_ns). It also holds the container's own part of
each cycle, which is the window while the arbiter writes no records. Times are CLOCK_MONOTONIC.

A record may hold a lane. Outside the window, launches are then admitted while the region's spent_ns
is less than lane_base_ns + (now - lane_from_ns) * lane_ppm / 1e6.

A container keeps its library, and thus its file's version. The arbiter writes both versions.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpuslice.contract import names
from gpuslice.contract.layout import Field, Struct, Write

MAGIC_BYTES: Final = b"gpslease"
MAGIC: Final = int.from_bytes(MAGIC_BYTES, "little")
VERSION: Final = 2
LANE_MIN_NS: Final = 3_000_000
"""A limited lane that has closed opens again for this much work."""
CYCLE_NS: Final = 100_000_000
"""Length of the cycle that the containers of a GPU divide by their shares."""
STALE_NS: Final = 500_000_000
"""Age at which a record becomes void. The container then uses its own part of each cycle."""
WHOLE_PPM: Final = 1_000_000
ALONE_US: Final = 20_000
"""The most work in flight while no other container waits."""
UNLIMITED_NS: Final = 2**64 - 1
"""As lane_base_ns: any GPU time."""

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
        Field("uint64_t", "lane_base_ns", "GPU time allowed at lane_from_ns; all ones: any"),
        Field("uint64_t", "lane_from_ns", "CLOCK_MONOTONIC; 0: no lane"),
        Field("uint32_t", "lane_ppm", "growth of the allowed GPU time per time since lane_from_ns"),
        Field("uint32_t", "in_flight_us", "most work that a stream may have in flight"),
        Field("uint32_t", "share_ppm", "length of the container's own part of each cycle"),
        Field("uint32_t", "offset_ppm", "start of the container's own part in the cycle"),
        Field("uint32_t", "exclusive", "1: no other container submits work during the window"),
        Field("uint32_t", "checksum", "CRC-32 (IEEE) of the record before it"),
    ),
)
RECORD_1: Final = struct.Struct("<4Q4IQ4xI")
"""A record of version 1: sequence, written_ns, start_ns, end_ns, share_ppm, offset_ppm, contended,
zero, zero, checksum."""
FILE_BYTES: Final = 4096
_LAUNCHES_CHECKED_OFFSET: Final = HEADER.offset("launches_checked")


class Lease(NamedTuple):
    """One GPU's lease. The attributes have the names and the order of the record's fields."""

    written_ns: int
    start_ns: int = 0
    end_ns: int = 0
    lane_base_ns: int = 0
    lane_from_ns: int = 0
    lane_ppm: int = 0
    in_flight_us: int = ALONE_US
    share_ppm: int = WHOLE_PPM
    offset_ppm: int = 0
    exclusive: bool = True


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


def version(data: bytes) -> int:
    """Return the version of a whole lease file: 1 or VERSION. 0: the data is no such file."""
    if len(data) != FILE_BYTES or not data.startswith(MAGIC_BYTES):
        return 0
    version = int.from_bytes(data[8:12], "little")
    return version if version in (1, VERSION) else 0


def check_launches(launches_checked: bool) -> Write:
    """Return the write that turns the check of launches on or off."""
    return Write(_LAUNCHES_CHECKED_OFFSET, struct.pack("<I", launches_checked))


def update(gpu: int, sequence: int, lease: Lease, version: int = VERSION) -> Sequence[Write]:
    """Return the writes for the GPU's next record. sequence: that of the last record, plus 1."""
    if version == 1:
        window = lease.written_ns, lease.start_ns, lease.end_ns
        part = lease.share_ppm, lease.offset_ppm, int(lease.in_flight_us < ALONE_US), 0, 0
        body = RECORD_1.pack(sequence, *window, *part, 0)[:-4]
    else:
        body = RECORD.pack_in_order(sequence, *lease, 0)[:-4]
    record = body + binascii.crc32(body).to_bytes(4, "little")
    base = record_offset(gpu, sequence, version)
    return (Write(base + 8, record[8:]), Write(base, record[:8]))


def launches_are_checked(data: bytes) -> bool:
    """Return whether launches are checked. data: the file's start. False if it is too short."""
    return data[_LAUNCHES_CHECKED_OFFSET : _LAUNCHES_CHECKED_OFFSET + 4] not in (b"", bytes(4))


def record_offset(gpu: int, sequence: int, version: int = VERSION) -> int:
    """Return the byte offset in the file of the GPU's record with this sequence number."""
    return (
        HEADER.size + (2 * gpu + sequence % 2) * (RECORD if version == VERSION else RECORD_1).size
    )


assert record_offset(names.MAX_GPUS, 0) <= FILE_BYTES, "the records of all GPUs fit the file"


def sequence(data: bytes, gpu: int, version: int) -> int:
    """Return the sequence number of the GPU's newest valid record. 0: no record is valid."""
    size = record_offset(0, 1, version) - HEADER.size
    pair = (record_offset(gpu, parity, version) for parity in (0, 1))
    records = [data[at : at + size] for at in pair]
    return max(
        int.from_bytes(record[:8], "little")
        if record[-4:] == binascii.crc32(record[:-4]).to_bytes(4, "little")
        else 0
        for record in records
    )


def decode(data: bytes, gpu: int) -> tuple[int, Lease] | None:
    """Return sequence number and lease of the GPU's newest valid record; None if none is valid.
    data: a file of this version."""
    number = sequence(data, gpu, VERSION)
    if not number:
        return None
    _, *rest, exclusive, _ = RECORD.unpack_in_order(data, record_offset(gpu, number))
    return number, Lease._make((*rest, bool(exclusive)))
