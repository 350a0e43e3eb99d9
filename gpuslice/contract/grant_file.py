"""The file `grant`: a container's limits. The agent overwrites it in parts, tenants read it.

The file has two copies, COPY_STRIDE bytes apart, each with its own checksum and sequence number.
Readers use the valid copy with the highest number. A writer replaces the older copy: content and
checksum first, the sequence number last. A writer killed at any step therefore leaves the newer
copy intact. The checksum includes the number, so a half-written copy is never valid.

To wait for a change, a reader waits by futex (on its read-only mapping) on the low word of the
sequence number of the copy that will be written next.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.layout import Field, Struct, Write, c_string, whole

MAGIC: Final = int.from_bytes(b"gpsgrant", "little")
VERSION: Final = 1
COPY_STRIDE: Final = 4096
FILE_BYTES: Final = 2 * COPY_STRIDE
UUID_CHARS: Final = 48

GPU: Final = Struct(
    "vgpu_grant_gpu",
    "One GPU of a grant.",
    (
        Field("char", "uuid", "GPU-xxxxxxxx-xxxx-..., NUL-padded", UUID_CHARS),
        Field("uint64_t", "limit_bytes", "limit of memory"),
        Field("uint32_t", "core_percent", "share of the GPU's time, 0 to 100"),
        Field("uint32_t", "minor", "the GPU's number on the host, for people"),
        Field("uint64_t", "reserved_times", "zero", 2),
        Field("uint64_t", "context_bytes", "charged for each context; 0: unknown"),
        Field("uint64_t", "overhead_bytes", "measured: held by the driver, and not in the region"),
        Field("uint64_t", "code_bytes", "charged with a process's first context, for its code"),
        Field("uint32_t", "flags", "VGPU_GRANT_MANAGED_FREE, at most one VGPU_GRANT_CORE_"),
        Field("uint32_t", "reserved_pad", "zero"),
        Field("uint64_t", "reserved", "zero", 2),
    ),
)
HEAD: Final = Struct(
    "vgpu_grant_head",
    "Start of a copy; `gpu_count` GPUs follow, then zeros up to the checksum.",
    (
        Field("uint64_t", "sequence", "1, 2, ...; written last; 0: never written"),
        Field("uint64_t", "magic", "VGPU_GRANT_MAGIC"),
        Field("uint32_t", "version", "VGPU_GRANT_VERSION"),
        Field("uint32_t", "gpu_count", "1 to VGPU_MAX_GPUS"),
        Field("uint64_t", "grant_id", "equal to the grant_id of the grant's region"),
        Field("uint64_t", "reserved", "zero", 4),
    ),
)
FLAG_MANAGED_FREE: Final = 1
"""Managed memory (cuMemAllocManaged) is not charged. It may then exceed the GPU's memory."""
FLAG_CORE_FORCED: Final = 2
FLAG_CORE_TURNS: Final = 4
FLAG_CORE_BACKGROUND: Final = 8
"""The flags of compute policies. A grant without one of them is FAIR."""
CHECKSUM_OFFSET: Final = HEAD.size + names.MAX_GPUS * GPU.size
"""Offset of the CRC-32 (IEEE) of all earlier bytes of the copy, sequence number included."""


def is_cap(core_percent: int) -> bool:
    """Return whether the percentage limits compute: 0 and 100 mean no cap."""
    return 0 < core_percent < 100


class Policy(StrEnum):
    """How a container shares a GPU's time with other containers. No policy changes a limit of
    memory."""

    FAIR = "fair"
    """It gets its share, and also the time that the others leave."""
    CAPPED = "capped"
    """It gets its share and no more, also on an otherwise idle GPU."""
    TURNS = "turns"
    """It submits work only in windows in which no other container does."""
    BACKGROUND = "background"
    """It submits work only while others pause, or are hardly slowed by it."""


POLICIES_TEXT: Final = "fair, capped, turns or background"
_POLICY_FLAGS: Final = {
    Policy.CAPPED: FLAG_CORE_FORCED,
    Policy.TURNS: FLAG_CORE_TURNS,
    Policy.BACKGROUND: FLAG_CORE_BACKGROUND,
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the grant. The attributes have the names of the record's fields."""

    uuid: str
    limit_bytes: int
    core_percent: int
    minor: int
    context_bytes: int = 0
    """Bytes charged for each CUDA context, code excluded. 0: unknown."""
    overhead_bytes: int = 0
    """The last measured overhead, in bytes, by which readers lower the limit."""
    code_bytes: int = 0
    """Bytes charged with a process's first context for code that is not measured yet."""
    managed_free: bool = False
    """Managed memory is not charged."""
    policy: Policy = Policy.FAIR

    @property
    def core_limited(self) -> bool:
        """Whether the container has to wait for windows, so that its launches must be checked."""
        return is_cap(self.core_percent) or self.policy in (Policy.TURNS, Policy.BACKGROUND)


_GPU_FIELDS: Final = tuple(field.name for field in fields(Gpu))


@dataclass(frozen=True, slots=True)
class Grant:
    """The file's content. `grant_id` ties the grant to its region."""

    grant_id: int
    gpus: Sequence[Gpu]


def fresh(grant: Grant) -> bytes:
    """Return a complete new file."""
    copy = _encode_copy(grant, 1)
    return copy.ljust(FILE_BYTES, b"\0")


def update(current: bytes, grant: Grant) -> Sequence[Write]:
    """Return the writes that turn `current` into `grant`. The file is valid after each of them."""
    sequences = [_valid_sequence(current, index) for index in (0, 1)]
    target = sequences.index(min(sequences))
    copy = _encode_copy(grant, max(sequences) + 1)
    base = target * COPY_STRIDE
    return (Write(base + 8, copy[8:]), Write(base, copy[:8]))


def decode(data: bytes) -> Grant | None:
    """Return the newest valid copy, or None if no copy is valid."""
    sequences = [_valid_sequence(data, index) for index in (0, 1)]
    if not any(sequences):
        return None
    base = sequences.index(max(sequences)) * COPY_STRIDE
    head = HEAD.unpack(data, base)
    gpus = []
    for index in range(whole(head["gpu_count"])):
        gpu = GPU.unpack(data, base + HEAD.size + index * GPU.size)
        uuid, flags = c_string(gpu.pop("uuid")), whole(gpu.pop("flags"))
        numbers = {name: whole(value) for name, value in gpu.items()}
        gpus.append(
            Gpu(
                uuid,
                managed_free=bool(flags & FLAG_MANAGED_FREE),
                policy=next(
                    (each for each, bit in _POLICY_FLAGS.items() if flags & bit), Policy.FAIR
                ),
                **numbers,
            )
        )
    return Grant(whole(head["grant_id"]), tuple(gpus))


def _encode_copy(grant: Grant, sequence: int) -> bytes:
    if not 1 <= len(grant.gpus) <= names.MAX_GPUS:
        raise ValueError(f"{len(grant.gpus)} GPUs: must be 1 to {names.MAX_GPUS}")
    body = HEAD.pack(
        {
            "sequence": sequence,
            "magic": MAGIC,
            "version": VERSION,
            "gpu_count": len(grant.gpus),
            "grant_id": grant.grant_id,
        }
    )
    for gpu in grant.gpus:
        uuid = gpu.uuid.encode("ascii")
        if not 0 < len(uuid) < UUID_CHARS:
            raise ValueError(
                f"uuid: invalid value {gpu.uuid!r}: must have 1 to {UUID_CHARS - 1} characters"
            )
        values = {name: getattr(gpu, name) for name in _GPU_FIELDS} | {"uuid": uuid}
        managed_free = FLAG_MANAGED_FREE if values.pop("managed_free") else 0
        values["flags"] = managed_free | _POLICY_FLAGS.get(values.pop("policy"), 0)
        body += GPU.pack(values)
    body = body.ljust(CHECKSUM_OFFSET, b"\0")
    return body + struct.pack("<I", binascii.crc32(body))


def _valid_sequence(data: bytes, index: int) -> int:
    """Return the copy's sequence number, or 0 if the copy is not valid."""
    base = index * COPY_STRIDE
    body = data[base : base + CHECKSUM_OFFSET]
    checksum = data[base + CHECKSUM_OFFSET : base + CHECKSUM_OFFSET + 4]
    if len(data) != FILE_BYTES or checksum != struct.pack("<I", binascii.crc32(body)):
        return 0
    head = HEAD.unpack(body)
    known = head["magic"] == MAGIC and head["version"] == VERSION
    if not known or not 1 <= whole(head["gpu_count"]) <= names.MAX_GPUS:
        return 0
    return whole(head["sequence"])
