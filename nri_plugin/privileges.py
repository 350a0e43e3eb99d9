"""Capabilities with which a process in a container takes its own limit away, and why each does.

Pure. A share's limit is mounts over a tenant's files, and device nodes that its cgroup allows; what
gets past either is here. What is not: MKNOD makes nodes, which the cgroup keeps shut (the runtime
gives it to everybody); BPF and PERFMON read what others do, and writing to their memory, or
detaching the cgroup's device program, takes SYS_ADMIN; SYS_PTRACE reaches the pod's own processes,
unless the host's are among them, and a debugger there gets no further by it than root without it.
A container that has no share takes those of others away with these, if it sees their processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

_PREFIX: Final = "CAP_"
_OVER_HOST: Final = "SYS_PTRACE"

LOOSENING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SYS_ADMIN": "unmounts what holds the limit",
        "SYS_MODULE": "loads code into the kernel",
        "SYS_RAWIO": "reaches the card past its driver",
        "DAC_READ_SEARCH": "opens files by their numbers, the grant to be written among them",
        _OVER_HOST: "reaches the host's files through its processes (hostPID)",
    }
)
"""By name, without CAP_: what a process with it does to the limit."""


def plain(name: str) -> str:
    """The name as LOOSENING has it, of the OCI's (CAP_SYS_ADMIN) and of Kubernetes' (SYS_ADMIN)."""
    return name.upper().removeprefix(_PREFIX)


def loosening(held: AbstractSet[str], host_pid: bool, allowed: AbstractSet[str]) -> str:
    """The first of the held capabilities that loosens a limit and is not allowed; empty: none.

    Plain names. host_pid: the container sees the host's processes.
    """
    for name in LOOSENING:
        if name in held and name not in allowed and (host_pid or name != _OVER_HOST):
            return name
    return ""
