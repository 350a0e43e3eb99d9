"""The daemon's answers to a client: the greeting, and one function per operation.

A request names an operation. An NVML client may only read, except that seat.py
sets limits for it. gpus.py interprets the other fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from simgpu import wire
from simgpu.config import GpuConfig, HostConfig
from simgpu.gpus import Gpu
from simgpu.wire import Op, Request, Role, Status, WireError

_Handler = Callable[[Gpu, int, tuple[Any, ...], int, str], bytes | None]
"""Takes the GPU, the client, the request's fields, the time and the client's control group. Returns
the reply's payload."""


def _fault(gpu: Gpu, _client: int, fields: tuple[bytes], *_: object) -> bytes:
    code, latency_ns = gpu.faults.strike(fields[0].rstrip(b"\0").decode(errors="replace"))
    return wire.pack("sim_fault", latency_ns, code, 0)


def text(padded: bytes) -> str:
    return os.fsdecode(padded.rstrip(b"\0"))


def _rows(name: str, rows: Sequence[tuple[int, ...]]) -> bytes:
    most = wire.PAYLOAD_BYTES // wire.STRUCTS[name].size
    return b"".join(wire.pack(name, *row) for row in rows[:most])


_ANY_ROLE: Final[Mapping[Op, _Handler]] = {
    Op.MEMORY_INFO: lambda gpu, _client, _of, _now, group: wire.pack(
        "sim_memory", *gpu.memory(group)
    ),
    Op.LIMITS_GET: lambda gpu, _client, of, *_: wire.pack(
        "sim_limits_now", *gpu.limit(text(of[0]))
    ),
    Op.PROCESSES: lambda gpu, *_: _rows("sim_process", gpu.processes()),
    Op.UTILIZATION: lambda gpu, *_: wire.pack("sim_utilization", *gpu.utilization()),
    Op.PROCESS_UTILIZATION: lambda gpu, *_: _rows(
        "sim_process_utilization", gpu.process_utilization()
    ),
}
_CUDA_ONLY: Final[Mapping[Op, _Handler]] = {
    Op.CONTEXT_CREATE: lambda gpu, client, *_: wire.pack(
        "sim_context", *gpu.context_create(client), 0
    ),
    Op.CONTEXT_DESTROY: lambda gpu, client, of, now_ns, _: gpu.context_destroy(
        client, of[0], now_ns
    ),
    Op.MEMORY_ALLOC: lambda gpu, client, of, *_: wire.pack("sim_id", gpu.memory_alloc(client, *of)),
    Op.MEMORY_FREE: lambda gpu, client, of, *_: gpu.memory_free(client, *of),
    Op.MEMORY_EXPORT: lambda gpu, client, of, *_: wire.pack(
        "sim_id", gpu.memory_export(client, *of)
    ),
    Op.MEMORY_IMPORT: lambda gpu, client, of, *_: wire.pack(
        "sim_imported", *gpu.memory_import(client, *of)
    ),
    Op.FAULT: _fault,
}
HANDLERS: Final[Mapping[Role, Mapping[Op, _Handler]]] = {
    Role.CUDA: {**_ANY_ROLE, **_CUDA_ONLY},
    Role.NVML: _ANY_ROLE,
}


def role_of(request: Request, now_ns: int) -> Role:
    """Return a client's role from its hello. Raises WireError if the client cannot be served."""
    if request.op is not Op.HELLO:
        raise WireError(f"{request.op.name} before HELLO")
    protocol, role, client_ns = request.fields
    if protocol != wire.PROTOCOL:
        raise WireError(f"protocol {protocol}, this daemon speaks {wire.PROTOCOL}")
    if client_ns > now_ns:
        raise WireError(f"now_ns: invalid value {client_ns}: must be at most {now_ns}")
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
