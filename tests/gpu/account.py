"""Compares the GPU's use and the container's charge in a program under the library.

Both figures are relative to the construction of `Account`. A process without the library reads the
GPU's use from NVML. The charge must be exact. The use may differ by two blocks or 2 %, because the
driver also allocates for itself. The tests fail if another program uses the GPU.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from shim import region
from tests.support import MIB
from traces.watch import Watch

BLOCK: Final = 2 * MIB
_SETTLED_S: Final = 20.0
_OTHERS: Final = {"LD_PRELOAD", names.ENV_DIR}


class Account:
    def __init__(self) -> None:
        self._directory = Path(os.environ[names.ENV_DIR])
        outside = {name: text for name, text in os.environ.items() if name not in _OTHERS}
        self._watch = Watch(self._status().gpu.uuid, outside)
        self._held_before, self.opened_at = self.held(), self.charged()

    def _status(self) -> region.GpuStatus:
        return region.status(self._directory)[0]

    def held(self) -> int:
        return self._watch.sample().used_bytes

    def held_by(self, pid: int) -> int:
        """Return the bytes that NVML reports for the process."""
        return self._watch.sample().of([pid])

    def charged(self) -> int:
        return self._status().use.used_bytes

    def free_bytes(self) -> int:
        return self._status().gpu.limit_bytes - self.charged()

    def took(self, expected_bytes: int) -> None:
        """Check that exactly these bytes are charged, and that the GPU's use has grown by them."""
        assert self.agrees("") == expected_bytes, (self.agrees(""), expected_bytes)

    def agrees(self, about: str) -> int:
        """Wait until charge and use agree. Return the charge. Print both if `about` names them."""
        deadline = time.monotonic() + _SETTLED_S
        while True:
            held = self.held() - self._held_before
            charged = self.charged() - self.opened_at
            if abs(charged - held) <= max(2 * BLOCK, held // 50):
                break
            assert time.monotonic() < deadline, f"{charged} bytes charged, the GPU gave up {held}"
            time.sleep(0.05)
        if about:
            sys.stdout.write(f"FIGURE {about}: charged {charged}, the GPU {held}\n")
        return charged
