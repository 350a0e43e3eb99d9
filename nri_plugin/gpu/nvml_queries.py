"""Names of the queries to NVML's process, for it (nvml.py) and its caller (nvml_process.py)."""

from __future__ import annotations

from typing import Final

GPUS: Final = "gpus"
"""Each GPU's description, and its XID errors since the last one."""
PROCESSES: Final = "processes"
"""The memory and utilization of each GPU's processes."""
LINKS: Final = "links"
"""Which GPUs are connected by NVLink: one answer, with the index BOARD."""
BOARD: Final = -1
