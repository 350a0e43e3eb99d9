"""Faults of driver functions, by exported name: how often each fails, its code, and its delay.

While a fault is armed, libcuda queries the daemon before each call. Any driver's functions can be
named. simgpu has no NVML events, so tests inject XIDs by tests/nri_plugin/fake_nvml.py. Pure.
"""

from __future__ import annotations

import re
from typing import Final

RECOVERY_ACTIONS: Final = {"none": 0, "reset": 1, "reboot": 2, "drain-p2p": 3, "drain-and-reset": 4}
"""NVML's number (nvmlDeviceGpuRecoveryAction_t) of each recovery action's name in commands."""

_NAME: Final = re.compile(r"cu[A-Za-z0-9_]{1,60}")


def is_call(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class CallFaults:
    """The faults of one GPU. Names are as exported: cuMemAlloc_v2, cuMemAllocAsync_ptsz."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[int, int]] = {}
        self._latency_ns: dict[str, int] = {}

    def fail(self, call: str, code: int, count: int) -> None:
        """Make the next `count` calls return `code` and do nothing. 0 disarms the fault."""
        self._failing.pop(call, None)
        if count:
            self._failing[call] = (code, count)

    def delay(self, call: str, latency_ns: int) -> None:
        """Delay the start of each call. 0 disarms the fault."""
        self._latency_ns.pop(call, None)
        if latency_ns:
            self._latency_ns[call] = latency_ns

    def strike(self, call: str) -> tuple[int, int]:
        """Return what happens to this call: its error code (0: it runs) and its delay in ns."""
        code, count = self._failing.get(call, (0, 0))
        if count:
            self.fail(call, code, count - 1)
        return code, self._latency_ns.get(call, 0)

    @property
    def armed(self) -> int:
        """The number of armed faults."""
        return len(self._failing) + len(self._latency_ns)
