"""The daemon: gpus.py behind sockets. One pathname socket per GPU, one control socket.

Transfers bytes, keeps time, detects exits; gpus.py interprets requests. A client is its connection:
when that closes, or the process that made it exits (its pidfd reports that, even while a fork child
holds the socket), all its allocations end. A client's input can end its own connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import json
import logging
import mmap
import os
import resource
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from simgpu import wire
from simgpu.board import LOCK_WAITERS, SHARED_BYTES, Board
from simgpu.config import GpuConfig, HostConfig
from simgpu.descriptors import Descriptors
from simgpu.faults import is_call
from simgpu.gpus import Gpu, GpuError
from simgpu.state_dir import StateDir
from simgpu.wire import Op, Request, Role, Status, WireError

log = logging.getLogger(__name__)

# Linux 6.5: a pidfd of the peer as of connect(), free of the race with pid reuse. Python has no
# name for it.
_SO_PEERPIDFD: Final = 77
_PEERCRED: Final = struct.Struct("iII")
# A process opens one connection per GPU and library; more are a mistake or an attack on the
# daemon's descriptors.
_CONNECTIONS_PER_PROCESS: Final = 64
_CONTROL_LINE_BYTES: Final = 65536

_Handler = Callable[[Gpu, int, tuple[Any, ...], int], bytes]


def _context_create(gpu: Gpu, client: int, _: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_context", *gpu.context_create(client), 0)


def _context_destroy(gpu: Gpu, client: int, fields: tuple[int, ...], now_ns: int) -> bytes:
    (context,) = fields
    gpu.context_destroy(client, context, now_ns)
    return b""


def _memory_alloc(gpu: Gpu, client: int, fields: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_id", gpu.memory_alloc(client, *fields))


def _memory_free(gpu: Gpu, client: int, fields: tuple[int, ...], _now: int) -> bytes:
    gpu.memory_free(client, *fields)
    return b""


def _memory_export(gpu: Gpu, client: int, fields: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_id", gpu.memory_export(client, *fields))


def _memory_import(gpu: Gpu, client: int, fields: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_imported", *gpu.memory_import(client, *fields))


def _fault(gpu: Gpu, _client: int, fields: tuple[bytes], _now: int) -> bytes:
    code, latency_ns = gpu.faults.strike(fields[0].rstrip(b"\0").decode(errors="replace"))
    return wire.pack("sim_fault", latency_ns, code, 0)


def _memory_info(gpu: Gpu, _client: int, _: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_memory", *gpu.memory())


def _processes(gpu: Gpu, _client: int, _: tuple[int, ...], _now: int) -> bytes:
    most = wire.PAYLOAD_BYTES // wire.STRUCTS["sim_process"].size
    return b"".join(
        wire.pack("sim_process", row.used_bytes, row.pid, row.contexts)
        for row in gpu.processes()[:most]
    )


def _utilization(gpu: Gpu, _client: int, _: tuple[int, ...], _now: int) -> bytes:
    return wire.pack("sim_utilization", *gpu.utilization())


def _process_utilization(gpu: Gpu, _client: int, _: tuple[int, ...], _now: int) -> bytes:
    most = wire.PAYLOAD_BYTES // wire.STRUCTS["sim_process_utilization"].size
    return b"".join(
        wire.pack("sim_process_utilization", pid, percent)
        for pid, percent in gpu.process_utilization()[:most]
    )


_ANY_ROLE: Final[Mapping[Op, _Handler]] = {
    Op.MEMORY_INFO: _memory_info,
    Op.PROCESSES: _processes,
    Op.UTILIZATION: _utilization,
    Op.PROCESS_UTILIZATION: _process_utilization,
}
_CUDA_ONLY: Final[Mapping[Op, _Handler]] = {
    Op.CONTEXT_CREATE: _context_create,
    Op.CONTEXT_DESTROY: _context_destroy,
    Op.MEMORY_ALLOC: _memory_alloc,
    Op.MEMORY_FREE: _memory_free,
    Op.MEMORY_EXPORT: _memory_export,
    Op.MEMORY_IMPORT: _memory_import,
    Op.FAULT: _fault,
}
_HANDLERS: Final[Mapping[Role, Mapping[Op, _Handler]]] = {
    Role.CUDA: {**_ANY_ROLE, **_CUDA_ONLY},
    Role.NVML: _ANY_ROLE,
}


class _Peer:
    """The process at the other end: its pid, and a pidfd if the kernel provides one."""

    def __init__(self, connection: socket.socket) -> None:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        self.pid, self.uid, _ = _PEERCRED.unpack(raw)
        self.pidfd = self._open(connection)

    def _open(self, connection: socket.socket) -> int | None:
        """Raises ProcessLookupError if the peer has exited already."""
        try:
            return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
        # An older kernel; or a peer outside this PID namespace (pid 0), whose exit shows only as
        # the closing of the connection.
        return os.pidfd_open(self.pid) if self.pid > 0 else None

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class _Memory:
    """A board's memory, which the clients map too."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("simgpu-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, SHARED_BYTES)
        # No client can take the memory from the others.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.mapped = mmap.mmap(self._fd, SHARED_BYTES)

    def send(self, connection: Any, data: bytes) -> None:
        """`data` with the memory's descriptor, as the first bytes of a connection: they fit."""
        with socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.setblocking(False)
            if socket.send_fds(own, [data], [self._fd]) != len(data):
                raise WireError("no room for a greeting")

    def close(self) -> None:
        os.close(self._fd)


class Seat:
    """One GPU with its connections, and the latency injected into its operations."""

    def __init__(self, host: HostConfig, config: GpuConfig, connections: Counter[int]) -> None:
        self._host = host
        self._memory = _Memory()
        self._board = Board(host, self._memory.mapped)
        self.gpu = Gpu(host, config, self._board)
        self.latency_ns: dict[Op, int] = {}
        self._descriptors = Descriptors(self.gpu)
        self._connections = connections
        self._numbers = itertools.cycle(range(1, LOCK_WAITERS))
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from accept to close."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            peer = _Peer(writer.get_extra_info("socket"))
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
        # Waiting clients need not find out by themselves.
        self._board.show(0, lost=True)
        self._memory.close()
        self._descriptors.close()

    def tick(self, now_ns: int) -> None:
        """Call it before the GPU is read or changed."""
        self.gpu.tick(now_ns)
        self._descriptors.drop_closed()

    def show_faults(self) -> None:
        self._board.show(self.gpu.faults.armed, self.gpu.lost)

    def lose(self, lost: bool) -> None:
        self.gpu.lost = lost
        self.show_faults()

    async def _converse(
        self, peer: _Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        requests = wire.Reader()
        number = next(self._numbers)
        role: Role | None = None
        client: int | None = None

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
                        role = _role_of(request)
                        if writer.transport.is_closing():
                            return
                        if role is Role.CUDA:
                            client = self.gpu.join(peer.pid)
                        hello = _hello_reply(self._host, self.gpu.config, number)
                        self._memory.send(writer.get_extra_info("socket"), hello)
                        continue
                    if role is Role.CUDA and client is None:
                        return
                    answer = self._answer(role, peer.pid, client or 0, request)
                    if request.op is Op.FAULT:
                        self.show_faults()
                    # The request is executed before the delay: a client killed during it keeps the
                    # result.
                    if delay_ns := self.latency_ns.get(request.op, 0):
                        await asyncio.sleep(delay_ns / 1e9)
                    writer.write(answer)
                    await writer.drain()
        finally:
            if peer.pidfd is not None:
                loop.remove_reader(peer.pidfd)
            let_go()

    def _answer(self, role: Role, pid: int, client: int, request: Request) -> bytes:
        now_ns = time.monotonic_ns()
        self.tick(now_ns)
        handler = _HANDLERS[role].get(request.op)
        try:
            if role is Role.CUDA and request.op is Op.MEMORY_KEEP:
                allocation, number, _ = request.fields
                self._descriptors.keep(client, pid, allocation, number)
                return wire.reply(Status.OK)
            if handler is None:
                return wire.reply(Status.NOT_SUPPORTED)
            return wire.reply(Status.OK, handler(self.gpu, client, request.fields, now_ns))
        except GpuError as error:
            return wire.reply(error.status)


def _role_of(request: Request) -> Role:
    if request.op is not Op.HELLO:
        raise WireError(f"{request.op.name} before HELLO")
    protocol, role = request.fields
    if protocol != wire.PROTOCOL:
        raise WireError(f"protocol {protocol}, this daemon speaks {wire.PROTOCOL}")
    try:
        return Role(role)
    except ValueError:
        raise WireError(f"role {role} is not known") from None


def _hello_reply(host: HostConfig, gpu: GpuConfig, connection: int) -> bytes:
    payload = wire.pack(
        "sim_gpu",
        gpu.uuid_bytes,
        gpu.name.encode(),
        host.driver_version.encode(),
        gpu.memory_bytes,
        host.granule_bytes,
        host.module_overhead_bytes,
        host.cuda_version,
        gpu.minor,
        gpu.pci_domain,
        gpu.pci_bus,
        gpu.pci_device,
        gpu.capability_major,
        gpu.capability_minor,
        gpu.multiprocessors,
        gpu.clock_khz,
        gpu.memory_clock_khz,
        gpu.bus_width_bits,
        gpu.power_limit_mw,
        gpu.mig_uuid_bytes,
        connection,
        0,
    )
    return wire.reply(Status.OK, payload)


class Control:
    """JSON lines: {"op": NAME, ...} is answered by {"ok": true, ...} or {"error": TEXT}."""

    def __init__(self, host: HostConfig, seats: Mapping[int, Seat], stop: Callable[[], None]):
        self._host = host
        self._seats = seats
        self._stop = stop

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError) as error:
            log.warning("control: %s", error)
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, **self._do(request)}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "status":
                return self._status()
            case "stop":
                self._stop()
            case "lose":
                self._seat(request).lose(True)
            case "restore":
                self._seat(request).lose(False)
            case "fail_allocs":
                self._seat(request).gpu.failing_allocs = _count(request, "count", 2**32)
            case "latency":
                self._latency(request)
            case "fail":
                seat = self._seat(request)
                count = _count(request, "count", 2**32)
                seat.gpu.faults.fail(_call(request), _count(request, "code", 999), count)
                seat.show_faults()
            case other:
                raise ValueError(f"no operation {other!r}")
        return {}

    def _latency(self, request: Mapping[str, Any]) -> None:
        seat, wanted_ns = self._seat(request), _count(request, "ns", 10 * 10**9)
        if request["call"] in Op.__members__:
            seat.latency_ns[Op[request["call"]]] = wanted_ns
        else:
            seat.gpu.faults.delay(_call(request), wanted_ns)
            seat.show_faults()

    def _seat(self, request: Mapping[str, Any]) -> Seat:
        minor = request["gpu"]
        if minor not in self._seats:
            raise ValueError(f"no GPU {minor!r}")
        return self._seats[minor]

    def _status(self) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        rows = []
        for minor, seat in self._seats.items():
            seat.tick(now_ns)
            rows.append(
                {
                    "minor": minor,
                    "uuid": seat.gpu.config.uuid,
                    "name": seat.gpu.config.name,
                    "total_bytes": seat.gpu.config.memory_bytes,
                    "used_bytes": seat.gpu.used_bytes,
                    "clients": seat.gpu.clients,
                    "lost": seat.gpu.lost,
                    "latency_ns": {op.name: ns for op, ns in seat.latency_ns.items() if ns},
                    "call_faults": seat.gpu.faults.describe(),
                }
            )
        return {
            "pid": os.getpid(),
            "driver_version": self._host.driver_version,
            "cuda_version": self._host.cuda_version,
            "host": repr(self._host),
            "gpus": rows,
        }


def _call(request: Mapping[str, Any]) -> str:
    name = request["call"]
    if not is_call(name):
        raise ValueError(f"call: {name!r} names no operation and no entry of the driver")
    return str(name)


def _count(request: Mapping[str, Any], key: str, limit: int) -> int:
    value = request[key]
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise ValueError(f"{key}: {value!r} is not a number from 0 to {limit}")
    return value


async def run(host: HostConfig, state_dir: StateDir) -> None:
    """Serve until SIGTERM, SIGINT or a stop over the control socket. The caller has locked D."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    connections: Counter[int] = Counter()
    seats = {gpu.minor: Seat(host, gpu, connections) for gpu in host.gpus}
    state_dir.clear_sockets()
    async with contextlib.AsyncExitStack() as stack:
        for minor, seat in seats.items():
            path = state_dir.gpu_socket(minor)
            server = await asyncio.start_unix_server(seat.serve, path, backlog=1024)
            path.chmod(0o666)
            stack.callback(server.close)
            stack.push_async_callback(seat.close)
        control = Control(host, seats, stopping.set)
        # Bound last: a client that reaches it finds every GPU.
        with _umask(0o177):
            server = await asyncio.start_unix_server(
                control.serve, state_dir.control, limit=_CONTROL_LINE_BYTES
            )
        stack.callback(server.close)
        log.info("up: %d GPUs in %s", len(seats), state_dir.root)
        await stopping.wait()
    state_dir.clear_sockets()
    log.info("down")


@contextlib.contextmanager
def _umask(mask: int) -> Any:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
