"""Faults by the name of a driver's entry: how often it fails, with which code, how late it is.

Pure. The library queries before each call, while anything is armed; names are not checked, so that
any entry can be named, of a later driver too.
"""

from __future__ import annotations

import re
from typing import Final

RECOVERY_ACTIONS: Final = {"none": 0, "reset": 1, "reboot": 2, "drain-p2p": 3, "drain-and-reset": 4}
"""What NVML says that a GPU needs (nvmlDeviceGpuRecoveryAction_t), by the word for it."""

_NAME: Final = re.compile(r"cu[A-Za-z0-9_]{1,60}")


def is_call(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class CallFaults:
    """Names are as the driver exports them: cuMemAlloc_v2, cuMemAllocAsync_ptsz."""

    def __init__(self) -> None:
        self._failing: dict[str, tuple[int, int]] = {}
        self._latency_ns: dict[str, int] = {}

    def fail(self, call: str, code: int, count: int) -> None:
        """The next `count` calls return `code` and do nothing; 0 disarms it."""
        self._failing.pop(call, None)
        if count:
            self._failing[call] = (code, count)

    def delay(self, call: str, latency_ns: int) -> None:
        """Each call begins so much later; 0 disarms it."""
        self._latency_ns.pop(call, None)
        if latency_ns:
            self._latency_ns[call] = latency_ns

    def strike(self, call: str) -> tuple[int, int]:
        """The outcome of this call: a code (0: none, the call runs) and a delay in nanoseconds."""
        code, count = self._failing.get(call, (0, 0))
        if count:
            self.fail(call, code, count - 1)
        return code, self._latency_ns.get(call, 0)

    @property
    def armed(self) -> int:
        """The number of armed faults."""
        return len(self._failing) + len(self._latency_ns)
