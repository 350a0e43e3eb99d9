"""The file `region`: what a container uses now. Its processes write it, the agent reads it.

    header | one record per GPU (the counter) | VGPU_MAX_SLOTS slots | one more record per GPU

A slot belongs to one process, or to memory that several processes hold (exported and imported).

The agent writes the header once and afterwards only reads. It uses pread, because the tenant can
write and truncate this file. The geometry depends only on the numbers of GPUs and slots. A reader
computes the geometry and rejects a file that contradicts it. No value that a tenant writes is ever
used as an offset.

The counter {used_bytes, tag} is one 16-byte word, changed only by compare-and-swap. The tag holds
the slot and the sequence number of the last operation: slot << VGPU_TAG_SLOT_SHIFT | sequence. Each
slot has two more such words per GPU: {bytes, sequence}, and {delta_bytes, delta_sequence}, which is
the operation that the slot has published. docs/adr/0002 describes the protocol.

Locks are open file description locks on bytes beyond the end of the file. A slot's process locks
byte LOCK_LIVE + slot until it exits. If a slot belongs to memory, its holders share the lock. Each
maps an inaccessible page at ANCHOR + slot * ANCHOR_BYTES, because the mapping keeps the lock.

A running container keeps its region and its library, which have the same version.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from gpuslice.contract import names
from gpuslice.contract.layout import Field, Struct, whole

MAGIC: Final = int.from_bytes(b"gpsregio", "little")
VERSION: Final = 5
LOCK_LIVE: Final = 1 << 40
ANCHOR: Final = 1 << 40
ANCHOR_BYTES: Final = 1 << 16
LOCK_LIMITS: Final = LOCK_LIVE - 1
"""Byte that a process locks while it writes a GPU's limit from the environment into the file."""
ENVIRONMENT_ID: Final = int.from_bytes(b"gpsenvir", "little")
"""The grant_id of a region whose limits came from the environment, not from a grant."""
TAG_SLOT_SHIFT: Final = 48
TAG_DROP: Final = 1 << 63

HEADER: Final = Struct(
    "vgpu_region_header",
    "The file's creator writes it once. A process that attaches checks every field.",
    (
        Field("uint64_t", "magic", "VGPU_REGION_MAGIC"),
        Field("uint32_t", "version", "VGPU_REGION_VERSION"),
        Field("uint32_t", "gpu_count", "as in the grant; the geometry follows from it"),
        Field("uint64_t", "file_bytes", "the whole file"),
        Field("uint64_t", "grant_id", "as in the grant"),
        Field("uint32_t", "slot_count", "VGPU_MAX_SLOTS"),
        Field("uint32_t", "slot_stride", "bytes from one slot to the next"),
        Field("uint64_t", "slots_offset", "bytes from the start of the file to slot 0"),
        Field("uint64_t", "created_ns", "CLOCK_MONOTONIC when the file was made; 0: unknown"),
        Field("uint64_t", "reserved", "zero", 8),
        Field("uint32_t", "reserved_checksum_pad", "zero"),
        Field("uint32_t", "checksum", "CRC-32 (IEEE) of all bytes of the header before it"),
    ),
)
GPU: Final = Struct(
    "vgpu_region_gpu",
    "One GPU: the counter on a cache line of its own, statistics on the next.",
    (
        Field("uint64_t", "used_bytes", "low half of the counter word"),
        Field("uint64_t", "tag", "high half of the counter word: slot and sequence"),
        Field("char", "uuid", "16 bytes; these four fields are 0 if a grant sets the limits", 16),
        Field("uint64_t", "limit_bytes", "from the environment; all ones: no limit"),
        Field("uint32_t", "core_percent", "from the environment; 0: no limit"),
        Field("uint32_t", "known", "VGPU_GPU_NEW, VGPU_GPU_NAMED or VGPU_GPU_LIMITED"),
        Field("uint64_t", "reserved_line", "zero", 2),
        Field("uint64_t", "refused_count", "reservations refused at the limit"),
        Field("uint64_t", "last_refused_bytes", "size of the last refused reservation"),
        Field("uint64_t", "over_refund_count", "refunds over the process's charge, clamped to it"),
        Field("uint64_t", "last_drop_ns", "CLOCK_MONOTONIC of the last exited process's refund"),
        Field("uint64_t", "next_search", "of GPU 0: the slot where the next partial search begins"),
        Field("uint64_t", "reserved", "zero", 3),
    ),
)
COMPUTE: Final = Struct(
    "vgpu_region_compute",
    "The container's work on one GPU. Its processes write it, the arbiter reads it.",
    (
        Field("uint64_t", "launched_ns", "CLOCK_MONOTONIC of the latest launch, or attempt"),
        Field("uint64_t", "busy_until_ns", "CLOCK_MONOTONIC at which submitted work is done"),
        Field("uint64_t", "throttled_ns", "time that launches waited, summed over threads"),
        Field("uint64_t", "reserved_count", "written by older libraries, never read"),
        Field("uint64_t", "spent_ns", "GPU time of submitted launches, by their kinds' costs"),
        Field("uint64_t", "unfinished_since_ns", "start of the latest work of over 1 s; 0: none"),
        Field("uint64_t", "reserved_until", "written by older libraries, never read"),
        Field("uint64_t", "waiting_since_ns", "start of a call that waits for work; 0: none"),
    ),
)
SLOT: Final = Struct(
    "vgpu_region_slot",
    "One process, or memory that several hold; `gpu_count` times vgpu_region_slot_gpu follow.",
    (
        Field("uint32_t", "state", "VGPU_SLOT_FREE, _LIVE or _SHARED"),
        Field("uint32_t", "pid", "in the namespace `pid_namespace`; 0 where shared"),
        Field("uint64_t", "start_ticks", "field 22 of /proc/PID/stat; 0: unknown"),
        Field("uint64_t", "pid_namespace", "inode of /proc/self/ns/pid; 0: unknown"),
        Field("uint64_t", "generation", "changes with the owner; 0: this and later slots are new"),
        Field(
            "uint64_t",
            "shared_key",
            "hash of the exported handle; 0: no process may attach any more",
        ),
        Field("uint64_t", "reserved", "zero", 3),
    ),
)
SLOT_GPU: Final = Struct(
    "vgpu_region_slot_gpu",
    "A process's charge on one GPU, and the operation it has published: two 16-byte words.",
    (
        Field("uint64_t", "bytes", "charged to this slot, as of `sequence`"),
        Field("uint64_t", "sequence", "operations of this slot that are in `bytes`"),
        Field("int64_t", "delta_bytes", "published: what the operation adds"),
        Field("uint64_t", "delta_sequence", "published: its sequence number"),
        Field("uint64_t", "reserved", "written by older libraries, never read"),
        Field("uint64_t", "float_bytes", "charged but not in use (docs/adr/0063); 0 or 1: none"),
    ),
)
GPU_NEW: Final = 0
GPU_NAMED: Final = 1
"""The record permanently belongs to its UUID, but the next process must still write its limit."""
GPU_LIMITED: Final = 2
SLOT_FREE: Final = 0
SLOT_LIVE: Final = 1
SLOT_SHARED: Final = 2
_LINE: Final = 64


@dataclass(frozen=True, slots=True)
class Geometry:
    """The byte offsets, from the file's start, of the parts of a region for `gpu_count` GPUs."""

    gpu_count: int

    @property
    def slots_offset(self) -> int:
        return HEADER.size + self.gpu_count * GPU.size

    @property
    def slot_stride(self) -> int:
        exact = SLOT.size + self.gpu_count * SLOT_GPU.size
        return -(-exact // _LINE) * _LINE

    @property
    def file_bytes(self) -> int:
        return self.compute_offset(self.gpu_count)

    def compute_offset(self, gpu: int) -> int:
        return self.slots_offset + names.MAX_SLOTS * self.slot_stride + gpu * COMPUTE.size

    def gpu_offset(self, gpu: int) -> int:
        return HEADER.size + gpu * GPU.size


class RegionError(ValueError):
    """The bytes are no region that this version can read. The text states the cause."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU's use by a container's processes, and how often they reached the limit."""

    used_bytes: int
    refused_count: int
    last_refused_bytes: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot in use. `bytes` and `float_bytes` have a value for each GPU."""

    number: int
    state: int
    pid: int
    pid_namespace: int
    bytes: Sequence[int]
    float_bytes: Sequence[int]


class Compute(NamedTuple):
    """A container's work on one GPU. The attributes have the names and the order of the record's
    fields that are not reserved."""

    launched_ns: int = 0
    busy_until_ns: int = 0
    throttled_ns: int = 0
    spent_ns: int = 0
    unfinished_since_ns: int = 0
    waiting_since_ns: int = 0


_USES: Final = tuple(field.name for field in fields(GpuUse))


def fresh(gpu_count: int, grant_id: int, created_ns: int = 0) -> bytes:
    """Return a complete new file with all slots free."""
    return header(gpu_count, grant_id, created_ns).ljust(Geometry(gpu_count).file_bytes, b"\0")


def header(gpu_count: int, grant_id: int, created_ns: int) -> bytes:
    """Return the packed header. created_ns: CLOCK_MONOTONIC; 0: unknown."""
    if not 1 <= gpu_count <= names.MAX_GPUS:
        raise ValueError(f"{gpu_count} GPUs: must be 1 to {names.MAX_GPUS}")
    geometry = Geometry(gpu_count)
    packed = HEADER.pack(
        {
            "magic": MAGIC,
            "version": VERSION,
            "gpu_count": gpu_count,
            "file_bytes": geometry.file_bytes,
            "grant_id": grant_id,
            "slot_count": names.MAX_SLOTS,
            "slot_stride": geometry.slot_stride,
            "slots_offset": geometry.slots_offset,
            "created_ns": created_ns,
            "checksum": 0,
        }
    )[:-4]
    return packed + struct.pack("<I", binascii.crc32(packed))


def geometry(data: bytes) -> Geometry:
    """Return the geometry that the header states. `data`: the file's start, read by pread. Raises
    RegionError if the tenant has truncated or overwritten it."""
    count = whole(_header(data)["gpu_count"])
    if not 1 <= count <= names.MAX_GPUS:
        raise RegionError(f"invalid gpu_count {count}: must be 1 to {names.MAX_GPUS}")
    return Geometry(count)


def uses(data: bytes) -> Sequence[GpuUse]:
    """Return what each GPU's record counts. data: the file's start, read by pread. Raises
    RegionError as `geometry` does."""
    shape = geometry(data)
    if len(data) < shape.slots_offset:
        raise RegionError("truncated GPU records")
    gpus = (GPU.unpack(data, shape.gpu_offset(i)) for i in range(shape.gpu_count))
    return tuple(GpuUse(**{name: whole(gpu[name]) for name in _USES}) for gpu in gpus)


def slots(data: bytes) -> Iterator[Slot]:
    """Yield the slots in use, lowest first. data: the file up to the end of the slots, read by
    pread. Raises RegionError as `geometry` does."""
    shape = geometry(data)
    if len(data) < shape.compute_offset(0):
        raise RegionError(f"truncated: {len(data)} bytes")
    for number in range(names.MAX_SLOTS):
        at = shape.slots_offset + number * shape.slot_stride
        slot = {name: whole(value) for name, value in SLOT.unpack(data, at).items()}
        if not slot["generation"]:
            return  # this slot and all above were never taken
        if slot["state"] not in (SLOT_LIVE, SLOT_SHARED):
            continue
        first = at + SLOT.size
        gpus = [SLOT_GPU.unpack(data, first + i * SLOT_GPU.size) for i in range(shape.gpu_count)]
        charges = [whole(gpu["bytes"]) for gpu in gpus]
        # Older libraries wrote 0 or 1 for another purpose.
        floats = [value if (value := whole(gpu["float_bytes"])) > 1 else 0 for gpu in gpus]
        yield Slot(number, slot["state"], slot["pid"], slot["pid_namespace"], charges, floats)


def _header(data: bytes) -> Mapping[str, int | bytes]:
    if len(data) < HEADER.size:
        raise RegionError(f"truncated: {len(data)} bytes")
    header = HEADER.unpack(data)
    if header["checksum"] != binascii.crc32(data[: HEADER.size - 4]):
        raise RegionError("invalid checksum of the header")
    if header["magic"] != MAGIC or header["version"] != VERSION:
        raise RegionError(f"invalid version {header['version']!r}: must be {VERSION}")
    return header


def compute(record: bytes) -> Compute:
    """Return a GPU's work. record: COMPUTE.size bytes read at `Geometry.compute_offset`. Fewer
    bytes come from a truncated file and count as no work."""
    if len(record) < COMPUTE.size:
        return Compute()
    return Compute(*COMPUTE.unpack_in_order(record))
