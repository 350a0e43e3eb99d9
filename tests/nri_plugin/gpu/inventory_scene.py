"""NVML's process as a test writes it: a file has its answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.nvml_process import FIRST_S
from nri_plugin.gpu.record import Record
from nri_plugin.policy.model import Gpu
from tests.nri_plugin import fake_nvml
from tests.support import Clock

ONE = {"uuid": "GPU-1", "minor": 0, "memory_bytes": 5}
TWO = {"uuid": "GPU-2", "minor": 1, "memory_bytes": 6}
GPU_1 = Gpu("GPU-1", 0, 5, index=0)
GPU_2 = Gpu("GPU-2", 1, 6, index=1)
HOUR_NS = str(3600 * 10**9)


class Answers:
    """A file with the answers of NVML's process."""

    def __init__(self, path: Path, *gpus: dict[str, Any], **more: object) -> None:
        self._path = path / "answers"
        self.give(*gpus, **more)

    def give(self, *gpus: dict[str, Any], **more: object) -> None:
        self._path.write_text(json.dumps({"gpus": gpus, **more}))

    def inventory(
        self, clock: Clock | None = None, record: Record | None = None, first_s: float = FIRST_S
    ) -> Inventory:
        return Inventory(
            os.environ,
            deadline_s=60.0,
            first_s=first_s,
            min_interval_s=5.0,
            now=clock or Clock(),
            command=(*fake_nvml.PROGRAM, str(self._path)),
            record=record,
        )
