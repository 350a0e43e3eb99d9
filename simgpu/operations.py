"""The daemon's answers to a client: the greeting, and one function per operation.

A request names an operation; an NVML client may only read. gpus.py interprets its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simgpu import wire
from simgpu.config import GpuConfig, HostConfig
from simgpu.gpus import Gpu
from simgpu.wire import Op, Request, Role, Status, WireError

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
HANDLERS: Final[Mapping[Role, Mapping[Op, _Handler]]] = {
    Role.CUDA: {**_ANY_ROLE, **_CUDA_ONLY},
    Role.NVML: _ANY_ROLE,
}


def role_of(request: Request) -> Role:
    if request.op is not Op.HELLO:
        raise WireError(f"{request.op.name} before HELLO")
    protocol, role = request.fields
    if protocol != wire.PROTOCOL:
        raise WireError(f"protocol {protocol}, this daemon speaks {wire.PROTOCOL}")
    try:
        return Role(role)
    except ValueError:
        roles = " or ".join(f"{each.value} ({each.name})" for each in Role)
        raise WireError(f"role: invalid value {role}: must be {roles}") from None


def hello_reply(host: HostConfig, gpu: GpuConfig, connection: int) -> bytes:
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
        gpu.capability_major,
        gpu.multiprocessors,
        gpu.mig_uuid_bytes,
        connection,
        0,
    )
    return wire.reply(Status.OK, payload)
