"""Reads a grant's files (charges and work in the region, leases). Writes overhead into the grant.

The open descriptors refer to the same files even after another grant has replaced the directory.
Reads by pread and never by mmap, because the limited program can truncate its region. Only one
process at a time may write a grant.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.overhead import Overhead
from gpuslice.gpu.answers import Usage

RegionError = region_file.RegionError


@dataclass(frozen=True, slots=True)
class Use:
    """A container's use of one GPU's time."""

    work: region_file.Compute
    core_percent: int = 100
    """The container's share in percent; 0 and 100: no cap."""
    checked: bool = True
    """Whether the container's launches are checked. Otherwise the library does not count `work`."""
    policy: Policy = Policy.FAIR


@dataclass(frozen=True, slots=True)
class Memory:
    """A container's memory of one GPU. used_bytes: the charge without floats, at most the limit,
    and the overhead. refused_count: as the region has it; the tenant can write any value."""

    used_bytes: int
    limit_bytes: int
    overhead_bytes: int
    refused_count: int


class Account:
    """One grant's files, open inside `with`. Entering raises OSError if a file is missing. Methods
    raise OSError, or RegionError if a file's content is invalid."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[int] = []
        self._region = self._grant = self._lease = -1
        self._gpus: Sequence[grant_file.Gpu] | None = None
        # The bytes read last, and their parsed values, reused for equal bytes.
        self._grant_seen: tuple[bytes, grant_file.Grant] | None = None
        self._charged_seen: tuple[bytes, Sequence[int]] = b"", ()
        self._slots = 0
        """Up to the last one in use. A process that takes another one changes the counter too."""
        self._refused: Sequence[int] = ()
        self._compute_seen: tuple[object, Mapping[str, Use]] = None, {}

    def __enter__(self) -> Account:
        self._gpus = None
        try:
            self._region = self._open(names.FILE_REGION, os.O_RDONLY)
            self._grant = self._open(names.FILE_GRANT, os.O_RDWR)
            self._lease = self._open(names.FILE_LEASE, os.O_RDONLY)
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            os.close(self._files.pop())

    def _open(self, name: str, flags: int) -> int:
        self._files.append(os.open(f"{self._directory}/{name}", flags | os.O_CLOEXEC))
        return self._files[-1]

    def gpus(self) -> Sequence[grant_file.Gpu]:
        """Return the grant's GPUs. They are read once in each `with` block."""
        if self._gpus is None:
            self._gpus = self._read_grant()[1].gpus
        return self._gpus

    def charged_bytes(self) -> Sequence[int]:
        """Return what the region charges on each GPU of the grant, without the floats.

        The float of an exited process counts until its slot is freed, as its charge does.
        """
        count = len(self.gpus())
        shape = region_file.Geometry(count)
        data = os.pread(self._region, shape.slots_offset + self._slots * shape.slot_stride, 0)
        if data != self._charged_seen[0]:
            data, self._slots = os.pread(self._region, shape.compute_offset(0), 0), 0
            uses = region_file.uses(data)
            charged = [use.used_bytes for use in uses]
            for slot in region_file.slots(data):
                self._slots = slot.number + 1
                if slot.state == region_file.SLOT_LIVE:
                    charged = [
                        max(0, a - b) for a, b in zip(charged, slot.float_bytes, strict=True)
                    ]
            seen = data[: shape.slots_offset + self._slots * shape.slot_stride]
            self._charged_seen = seen, charged
            self._refused = [use.refused_count for use in uses]
        charged_bytes = self._charged_seen[1]
        if len(charged_bytes) != count:
            raise RegionError(f"{len(charged_bytes)} GPUs, the grant has {count}")
        return charged_bytes

    def memory(self) -> Mapping[str, Memory]:
        """Return the memory of each GPU by its UUID."""
        memories, charged = {}, self.charged_bytes()
        for gpu, charged_bytes, refused in zip(self.gpus(), charged, self._refused, strict=True):
            used_bytes = min(charged_bytes, gpu.limit_bytes) + gpu.overhead_bytes
            memories[gpu.uuid] = Memory(used_bytes, gpu.limit_bytes, gpu.overhead_bytes, refused)
        return memories

    def compute(self) -> Mapping[str, Use]:
        """Return the use of each GPU by its UUID. A truncated region counts as no work. Returns
        the previous call's object if nothing has changed since."""
        gpus = self.gpus()
        geometry = region_file.Geometry(len(gpus))
        lease = os.pread(self._lease, lease_file.HEADER.size, 0)
        checked = lease_file.launches_are_checked(lease)
        records = [
            os.pread(self._region, region_file.COMPUTE.size, geometry.compute_offset(index))
            for index in range(len(gpus))
        ]
        seen = (gpus, checked, records)
        if seen != self._compute_seen[0]:
            uses = {
                gpu.uuid: Use(region_file.compute(record), gpu.core_percent, checked, gpu.policy)
                for gpu, record in zip(gpus, records, strict=True)
            }
            self._compute_seen = seen, uses
        return self._compute_seen[1]

    def write_overheads(self, overhead_bytes: Mapping[str, int]) -> None:
        """Write the overheads (bytes by GPU UUID) into the grant unless it has these already."""
        if all(overhead_bytes.get(gpu.uuid) in (None, gpu.overhead_bytes) for gpu in self.gpus()):
            return
        current, grant = self._read_grant()
        gpus = tuple(
            replace(gpu, overhead_bytes=overhead_bytes.get(gpu.uuid, gpu.overhead_bytes))
            for gpu in grant.gpus
        )
        for write in grant_file.update(current, replace(grant, gpus=gpus)):
            os.pwrite(self._grant, write.data, write.offset)

    def _read_grant(self) -> tuple[bytes, grant_file.Grant]:
        current = os.pread(self._grant, grant_file.FILE_BYTES, 0)
        if self._grant_seen is None or current != self._grant_seen[0]:
            grant = grant_file.decode(current)
            if grant is None:
                raise RegionError("no valid copy of a grant")
            self._grant_seen = current, grant
        return self._grant_seen


class Measured:
    """The overheads of one grant, updated by each sample."""

    def __init__(self) -> None:
        self._overheads: dict[str, Overhead] = {}
        self._listed: set[str] = set()
        self._above: set[str] = set()
        self.violations: Counter[str] = Counter()
        """How often NVML's bytes of the processes rose above the limit, by the GPU's UUID."""

    def add(
        self, account: Account, before: Sequence[int], usage: Usage, pids: Collection[int]
    ) -> Mapping[str, int | None]:
        """Add a sample and write the resulting overheads into the grant.

        before: `charged_bytes` read before the NVML query. usage: the query's result. pids: the
        grant's processes. Returns each GPU's overhead now in the grant, by UUID. None: this sample
        has no value, and the grant keeps the previous overhead. Raises as Account does.
        """
        gpus, after = account.gpus(), account.charged_bytes()
        overheads: dict[str, int | None] = {}
        measured = {}
        for gpu, *reads in zip(gpus, before, after, strict=True):
            charged_bytes = max(reads)
            held_bytes = self._held_bytes(gpu.uuid, usage, pids, charged_bytes)
            overheads[gpu.uuid] = None if held_bytes is None else gpu.overhead_bytes
            if held_bytes is None:
                continue
            if held_bytes <= gpu.limit_bytes:
                self._above.discard(gpu.uuid)
            elif gpu.uuid not in self._above:
                self._above.add(gpu.uuid)
                self.violations[gpu.uuid] += 1
            overhead = self._overheads.setdefault(gpu.uuid, Overhead())
            least = overhead.add(held_bytes, charged_bytes)
            if least is not None:
                overheads[gpu.uuid] = measured[gpu.uuid] = least
        account.write_overheads(measured)
        return overheads

    def _held_bytes(
        self, uuid: str, usage: Usage, pids: Collection[int], charged_bytes: int
    ) -> int | None:
        """Return the bytes that NVML reports for these processes. None: NVML has no value for the
        GPU or for a process, or the processes have a charge but NVML has not listed any yet."""
        listed = usage.get(uuid)
        if listed is None:
            return None
        sizes = [listed[pid] for pid in pids if pid in listed]
        if sizes:
            self._listed.add(uuid)
        elif charged_bytes and uuid not in self._listed:
            return None
        return None if None in sizes else sum(size for size in sizes if size is not None)
