"""The GPUs: each has one pool of memory and its engine's channels, and knows what its clients hold.

Pure: no clock, socket or process. Times are arguments, in nanoseconds of CLOCK_MONOTONIC. A client
is a number, with a pid that the daemon has verified. Every refusal is a GpuError with the status
for the reply. Invariant: used_bytes is the sum of what connected clients hold and what disconnected
clients held until their teardown delay ends. It never exceeds the pool.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from simgpu.board import Board
from simgpu.config import GpuConfig, HostConfig
from simgpu.faults import CallFaults
from simgpu.limits import Limit, Limits
from simgpu.wire import Status

SECOND_NS: Final = 10**9


class GpuError(Exception):
    """The GPU refuses a request. The client receives `status`."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class ProcessUse(NamedTuple):
    used_bytes: int
    pid: int
    contexts: int


@dataclass(slots=True)
class _Context:
    channel: int
    allocations: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Memory:
    """A piece of the pool. It is freed when no client holds it."""

    charged_bytes: int
    holders: list[int]
    """For each id of this memory its client, oldest first. The bytes count for the first client."""
    token: int = 0


@dataclass(slots=True)
class _Client:
    pid: int
    group: str
    contexts: dict[int, _Context] = field(default_factory=dict)
    allocations: dict[int, tuple[int, _Memory]] = field(default_factory=dict)
    """By allocation id: the context's id (0: the client's own allocation) and the memory."""
    used_bytes: int = 0


class Gpu:
    """One GPU. Every method with a parameter `client` raises KeyError for an unknown client."""

    def __init__(self, host: HostConfig, config: GpuConfig, board: Board) -> None:
        self.config = config
        self.lost = False
        self.faults = CallFaults()
        self._host = host
        self._board = board
        self._clients: dict[int, _Client] = {}
        self._exported: dict[int, _Memory] = {}
        self._lingering: deque[tuple[int, int, str]] = deque()
        self._next_id = 1
        self.limits = Limits()
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        return self.config.memory_bytes - self.used_bytes

    def used_in(self, group: str) -> int:
        """Return the memory that counts for the limit of this control group."""
        uses = [(each.group, each.used_bytes) for each in self._clients.values()]
        uses += [(of, used) for _, used, of in self._lingering]
        limited = self.limits.nearest(group)
        return sum(used for of, used in uses if self.limits.nearest(of) == limited)

    def limit(self, group: str) -> tuple[int, int, int]:
        """Return the soft and the hard limit that apply to a control group, and their use."""
        applying = self.limits.of.get(self.limits.nearest(group), Limit())
        return *applying, self.used_in(group)

    @property
    def clients(self) -> int:
        return len(self._clients)

    def join(self, pid: int, group: str = "") -> int:
        client = self._take_id()
        self._clients[client] = _Client(pid, group)
        return client

    def leave(self, client: int, now_ns: int) -> None:
        """End the client's contexts now. Free its memory at the teardown delay after `now_ns`."""
        gone = self._clients[client]
        for allocation, (_, memory) in tuple(gone.allocations.items()):
            if any(holder != client for holder in memory.holders):
                self._release(client, allocation)
            else:
                self._exported.pop(memory.token, None)
        del self._clients[client]
        delay_ns = int(self._host.teardown_delay_s * SECOND_NS)
        if gone.used_bytes and delay_ns:
            self._lingering.append((now_ns + delay_ns, gone.used_bytes, gone.group))
        else:
            self.used_bytes -= gone.used_bytes
        for context in gone.contexts.values():
            self._board.end_channel(context.channel, now_ns)

    def tick(self, now_ns: int) -> None:
        """Free memory whose teardown delay is over. Call this before using the GPU."""
        while self._lingering and self._lingering[0][0] <= now_ns:
            _, amount, _ = self._lingering.popleft()
            self.used_bytes -= amount

    def context_create(self, client: int) -> tuple[int, int]:
        """Return the new context's id and its channel."""
        owner = self._alive(client)
        overhead = self._host.context_overhead_bytes
        if overhead > self.memory(owner.group)[1]:
            raise GpuError(Status.OUT_OF_MEMORY)
        channel = self._board.open_channel()
        if channel is None:
            raise GpuError(Status.OUT_OF_MEMORY)
        self._charge(owner, overhead)
        context = self._take_id()
        owner.contexts[context] = _Context(channel)
        return context, channel

    def context_destroy(self, client: int, context: int, now_ns: int) -> None:
        """Destroy a context with its pending work."""
        owner = self._alive(client)
        for allocation in tuple(self._context(owner, context).allocations):
            self._release(client, allocation)
        self._board.end_channel(owner.contexts.pop(context).channel, now_ns)
        self._charge(owner, -self._host.context_overhead_bytes)

    def memory_alloc(self, client: int, context: int, size_bytes: int) -> int:
        """Allocate memory that ends with the context. With context 0, it ends with the client."""
        owner = self._alive(client)
        if context:
            self._context(owner, context)
        if size_bytes <= 0:
            raise GpuError(Status.INVALID_VALUE)
        granule = self._host.granule_bytes
        charged = -(-size_bytes // granule) * granule
        if charged > self.memory(owner.group)[1]:
            raise GpuError(Status.OUT_OF_MEMORY)
        self._charge(owner, charged)
        return self._hold(owner, context, _Memory(charged, [client]))

    def memory_free(self, client: int, allocation: int) -> None:
        owner = self._alive(client)
        if allocation not in owner.allocations:
            raise GpuError(Status.NOT_FOUND)
        self._release(client, allocation)

    def memory_export(self, client: int, allocation: int) -> int:
        """Return the memory's token, which is valid for all clients while any client holds it."""
        owner = self._alive(client)
        if allocation not in owner.allocations:
            raise GpuError(Status.NOT_FOUND)
        _, memory = owner.allocations[allocation]
        memory.token = memory.token or self._take_id()
        self._exported[memory.token] = memory
        return memory.token

    def memory_import(self, client: int, context: int, token: int) -> tuple[int, int]:
        """Return a new id of the client for exported memory, and the memory's bytes."""
        owner = self._alive(client)
        if context:
            self._context(owner, context)
        memory = self._exported.get(token)
        if memory is None:
            raise GpuError(Status.NOT_FOUND)
        memory.holders.append(client)
        return self._hold(owner, context, memory), memory.charged_bytes

    def processes(self) -> list[ProcessUse]:
        """Return a row per process with a context, by pid, as NVML lists compute processes. Its
        bytes include contexts, code and allocations. Shared memory counts for the process that has
        had it longest, as on an H200."""
        rows: dict[int, ProcessUse] = {}
        self._not_lost()
        for client in self._clients.values():
            if client.contexts:
                used, _, contexts = rows.get(client.pid, ProcessUse(0, client.pid, 0))
                rows[client.pid] = ProcessUse(
                    used + client.used_bytes, client.pid, contexts + len(client.contexts)
                )
        return [rows[pid] for pid in sorted(rows)]

    def memory(self, group: str = "") -> tuple[int, int]:
        """Return total and free bytes, as a process in this control group sees them."""
        self._not_lost()
        total, limited = self.config.memory_bytes, self.limits.nearest(group)
        if not limited:
            return total, self.free_bytes
        _, hard_bytes, used_bytes = self.limit(limited)
        left_bytes = max(hard_bytes - used_bytes, 0)
        return min(total, hard_bytes), min(self.free_bytes, left_bytes)

    def utilization(self) -> tuple[int, int]:
        """Return the GPU's busy percentage of the last second, and half of it as the memory's."""
        self._not_lost()
        percent = self._board.busy_percent()
        return percent, percent // 2

    def process_utilization(self) -> list[tuple[int, int]]:
        """Return the busy percentage of the last second for each process with a context, by pid."""
        percent = {row.pid: 0 for row in self.processes()}
        for client in self._clients.values():
            for context in client.contexts.values():
                percent[client.pid] += self._board.channel_busy_percent(context.channel)
        return list(percent.items())

    def _take_id(self) -> int:
        taken = self._next_id
        self._next_id += 1
        return taken

    def _not_lost(self) -> None:
        if self.lost:
            raise GpuError(Status.GPU_LOST)

    def _alive(self, client: int) -> _Client:
        self._not_lost()
        return self._clients[client]

    def _context(self, owner: _Client, context: int) -> _Context:
        if context not in owner.contexts:
            raise GpuError(Status.NOT_FOUND)
        return owner.contexts[context]

    def _charge(self, owner: _Client, amount_bytes: int) -> None:
        owner.used_bytes += amount_bytes
        self.used_bytes += amount_bytes

    def _hold(self, owner: _Client, context: int, memory: _Memory) -> int:
        allocation = self._take_id()
        owner.allocations[allocation] = (context, memory)
        if context:
            owner.contexts[context].allocations.add(allocation)
        return allocation

    def _release(self, client: int, allocation: int) -> None:
        owner = self._clients[client]
        context, memory = owner.allocations.pop(allocation)
        if context:
            owner.contexts[context].allocations.discard(allocation)
        counted_for = self._clients[memory.holders[0]]
        memory.holders.remove(client)
        self._charge(counted_for, -memory.charged_bytes)
        if memory.holders:
            self._charge(self._clients[memory.holders[0]], memory.charged_bytes)
        else:
            self._exported.pop(memory.token, None)
