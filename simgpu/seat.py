"""One GPU's connections: reads requests, delays replies. gpus.py interprets the requests.

Each connection is one client. All its allocations end when it closes, or when the process that made
it exits. The process's pidfd reports the exit even while a fork child holds the socket. Whatever a
client sends can end only its own connection.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import logging
import mmap
import os
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from simgpu import wire
from simgpu.board import LOCK_WAITERS, SHARED_BYTES, Board
from simgpu.config import GpuConfig, HostConfig
from simgpu.control_groups import ControlGroups
from simgpu.descriptors import Descriptors
from simgpu.gpus import Gpu, GpuError
from simgpu.limits import Limit
from simgpu.operations import HANDLERS, hello_reply, role_of, text
from simgpu.wire import Op, Request, Role, Status, WireError

log = logging.getLogger(__name__)

# Linux 6.5 returns the pidfd of the process that connected, even if its pid is used again. Python
# has no name for this option.
_SO_PEERPIDFD: Final = 77
_PEERCRED: Final = struct.Struct("iII")
# A process opens one connection per GPU and library. Many more are an error, or an attack that uses
# up the daemon's descriptors.
_CONNECTIONS_PER_PROCESS: Final = 64


class Peer:
    """The process at the other end: its pid, and a pidfd if the kernel provides one."""

    def __init__(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        self.pid, self.uid, _ = _PEERCRED.unpack(raw)
        self.pidfd = self._open(connection)

    def _open(self, connection: socket.socket) -> int | None:
        """Return the peer's pidfd, or None. Raises ProcessLookupError if the peer has exited."""
        try:
            return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
        # An older kernel only has the pid. A peer outside of this PID namespace has pid 0. Then
        # only the closing of the connection shows its exit.
        return os.pidfd_open(self.pid) if self.pid > 0 else None

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class SharedMemory:
    """The memory behind a Board. The GPU's clients map it too."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("simgpu-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, SHARED_BYTES)
        # The seals keep a client from shrinking the memory that other clients use.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.mapped = mmap.mmap(self._fd, SHARED_BYTES)

    def send(self, connection: Any, data: bytes) -> None:
        """Send `data` and the memory's descriptor as the first bytes, which always fit."""
        with socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.setblocking(False)
            if socket.send_fds(own, [data], [self._fd]) != len(data):
                raise WireError("no room for a greeting")

    def close(self) -> None:
        os.close(self._fd)


class Seat:
    """One GPU with its connections, and the latency that is injected into its operations."""

    def __init__(self, host: HostConfig, config: GpuConfig, connections: Counter[int]) -> None:
        self._host = host
        self._memory = SharedMemory()
        self._board = Board(host, self._memory.mapped)
        self.gpu = Gpu(host, config, self._board)
        self.latency_ns: dict[Op, int] = {}
        self._descriptors = Descriptors(self.gpu)
        self._connections = connections
        self._groups = ControlGroups(Path(host.cgroup_root))
        self._limited: dict[str, int] = {}
        """The inode of each control group that has a limit."""
        self._numbers = itertools.cycle(range(1, LOCK_WAITERS))
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from accept to close."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            peer = Peer(writer.get_extra_info("socket"))
        except OSError as error:
            log.info("GPU %d: peer gone at accept: %s", self.gpu.config.minor, error)
            writer.transport.abort()
            self._tasks.discard(task)
            return
        self._connections[peer.pid] += 1
        try:
            if self._connections[peer.pid] > _CONNECTIONS_PER_PROCESS:
                raise WireError(f"more than {_CONNECTIONS_PER_PROCESS} connections")
            await self._converse(peer, reader, writer)
        except WireError as error:
            log.warning("GPU %d: pid %d: %s", self.gpu.config.minor, peer.pid, error)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections[peer.pid] -= 1
            if not self._connections[peer.pid]:
                del self._connections[peer.pid]
            peer.close()
            writer.transport.abort()
            self._tasks.discard(task)

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        # Clients that wait for the GPU learn at once that it is lost.
        self._board.show(0, lost=True)
        self._memory.close()
        self._descriptors.close()

    def tick(self, now_ns: int) -> None:
        """Bring the GPU up to date. Call this before reading or changing it."""
        self.gpu.tick(now_ns)
        for group, inode in tuple(self._limited.items()):
            if self._groups.inode(group) != inode:  # the group was removed
                self.gpu.limits.set(group, Limit())
                del self._limited[group]
        self._descriptors.drop_closed()

    def show_faults(self) -> None:
        self._board.show(self.gpu.faults.armed, self.gpu.lost)

    def lose(self, lost: bool) -> None:
        self.gpu.lost = lost
        self.show_faults()

    def needs(self, action: int) -> None:
        """Set the recovery action that NVML reports from now on."""
        self._board.show_recovery(action)

    async def _converse(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        requests = wire.Reader()
        number = next(self._numbers)
        role: Role | None = None
        client: int | None = None
        group = self._groups.group_of(peer.pid)

        def let_go() -> None:
            nonlocal client
            self._board.release(number)
            if client is not None:
                self._descriptors.drop_closed()
                self.gpu.leave(client, time.monotonic_ns())
                client = None

        def on_exit() -> None:
            if peer.pidfd is not None:
                loop.remove_reader(peer.pidfd)
            let_go()
            writer.transport.abort()

        if peer.pidfd is not None:
            loop.add_reader(peer.pidfd, on_exit)
        try:
            while data := await reader.read(wire.HEAD_BYTES + wire.PAYLOAD_BYTES):
                for request in requests.feed(data):
                    if role is None:
                        role = role_of(request, time.monotonic_ns())
                        if writer.transport.is_closing():
                            return
                        if role is Role.CUDA:
                            client = self.gpu.join(peer.pid, group)
                        hello = hello_reply(self._host, self.gpu.config, number)
                        self._memory.send(writer.get_extra_info("socket"), hello)
                        continue
                    if role is Role.CUDA and client is None:
                        return
                    answer = self._answer(role, peer.pid, client or 0, group, request)
                    if request.op is Op.FAULT:
                        self.show_faults()
                    # The request is executed before the delay. So if the client is killed during
                    # the delay, it already has the result.
                    if delay_ns := self.latency_ns.get(request.op, 0):
                        await asyncio.sleep(delay_ns / 1e9)
                    writer.write(answer)
                    await writer.drain()
        finally:
            if peer.pidfd is not None:
                loop.remove_reader(peer.pidfd)
            let_go()

    def _answer(self, role: Role, pid: int, client: int, group: str, request: Request) -> bytes:
        now_ns = time.monotonic_ns()
        self.tick(now_ns)
        handler = HANDLERS[role].get(request.op)
        try:
            if role is Role.CUDA and request.op is Op.MEMORY_KEEP:
                allocation, number, _ = request.fields
                self._descriptors.keep(client, pid, allocation, number)
                return wire.reply(Status.OK)
            if role is Role.NVML and request.op is Op.LIMITS_SET:
                self._set_limit(pid, text(request.fields[0]), Limit(*request.fields[1:]))
                return wire.reply(Status.OK)
            if handler is None:
                return wire.reply(Status.NOT_SUPPORTED)
            payload = handler(self.gpu, client, request.fields, now_ns, group)
            return wire.reply(Status.OK, payload or b"")
        except GpuError as error:
            return wire.reply(error.status)

    def _set_limit(self, pid: int, group: str, limit: Limit) -> None:
        if not self._groups.may_set(pid):
            raise GpuError(Status.NO_PERMISSION)
        if limit.soft_bytes > limit.hard_bytes:
            raise GpuError(Status.INVALID_VALUE)
        if not self._groups.may_have_limit(group):
            raise GpuError(Status.NOT_FOUND)
        self.gpu.limits.set(group, limit)
        self._limited[group] = self._groups.inode(group)
