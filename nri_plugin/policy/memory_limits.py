"""Which programs keep a container's limit of GPU memory: the library, or the driver too. Pure.

NVIDIA's driver limits the memory of a control group from release 615 on. The library charges as
before and refuses first, so that a program gets the usual error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu

MIG_MODE: Final = "MIG mode is enabled: must be disabled for shares (nvidia-smi -mig 0)"
"""A GPU's problem. Such a GPU has no limits of control groups either."""
_ROUNDED_BYTES: Final = 2 << 20
"""By how much the driver may round a limit down."""
_NO_ANSWER: Final = "NVML did not answer for the GPU"


class MemoryLimits(StrEnum):
    """The agent's --memory-limits. AUTO: the driver's too, on nodes that have it."""

    LIBRARY = "library"
    AUTO = "auto"
    DRIVER = "driver"


def unavailable(
    limits: MemoryLimits, driver: str, has_calls: bool, root: str, is_v2: bool, gpus: Sequence[Gpu]
) -> str:
    """Return why the driver cannot limit the containers of this node; "": it can. driver: its
    version. has_calls: whether NVML has the calls. root: the directory of control groups. gpus:
    those that gpuslice allocates. Under AUTO a GPU in MIG mode is no reason: it has no shares."""
    if not driver:
        return "NVML has not reported the driver yet"
    if not has_calls:
        return f"driver: invalid version {driver}: must be 615 or newer"
    if not is_v2:
        return f"{root}: must be a hierarchy of cgroup v2"
    mig = [gpu.uuid for gpu in gpus if gpu.problem == MIG_MODE]
    if mig and limits is MemoryLimits.DRIVER:
        return f"{', '.join(mig)}: MIG mode must be disabled, or the GPU excluded"
    return ""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in force on a node or container. lacks: why the driver's are not; "": they are,
    unless the operator chose the library's."""

    chosen: MemoryLimits
    lacks: str = ""

    @property
    def in_force(self) -> str:
        """The value that the node reports for its GPUs and containers."""
        both = self.chosen is not MemoryLimits.LIBRARY and not self.lacks
        return (MemoryLimits.DRIVER if both else MemoryLimits.LIBRARY).value

    @property
    def text(self) -> str:
        if self.chosen is MemoryLimits.LIBRARY:
            return "memory limits: library"
        if not self.lacks:
            return "memory limits: library and driver"
        return f"memory limits: library; the driver's are not available: {self.lacks}"

    @property
    def refusal(self) -> str:
        """Why the node must not serve; "": it may."""
        must = self.chosen is MemoryLimits.DRIVER and self.lacks
        return f"--memory-limits=driver: {self.lacks}" if must else ""


def requests(
    groups: Mapping[str, str], holds: Sequence[Hold], indexes: Mapping[str, int]
) -> Mapping[int, tuple[str, Mapping[str, int]]]:
    """Return NVML's request: by the GPU's index its UUID, and the bytes of each control group.
    groups: by container ID. indexes: by UUID; a GPU that NVML does not list is left out."""
    by_gpu: dict[int, tuple[str, dict[str, int]]] = {}
    for hold in holds:
        for uuid, part in hold.parts.items():
            if hold.container_id in groups and uuid in indexes:
                _, wanted = by_gpu.setdefault(indexes[uuid], (uuid, {}))
                wanted[groups[hold.container_id]] = part.memory_bytes
    return by_gpu


def problem(line: Mapping[str, Any] | None, group: str, wanted_bytes: int) -> tuple[str, bool]:
    """Judge NVML's answer for a control group on one GPU. Return why the limit is not in force, ""
    if it is; and whether the group had another limit before. line: the GPU's answer."""
    if line is None or "limits" not in line:
        return str((line or {}).get("error", _NO_ANSWER)), False
    answer = line["limits"].get(group, _NO_ANSWER)
    if isinstance(answer, str):
        return answer, False
    was, now = answer
    if not 0 <= wanted_bytes - now < _ROUNDED_BYTES:
        return f"NVML reports {now} bytes after a set of {wanted_bytes}", False
    return "", was != now
