"""Names of the queries that nvml_process.py sends and nvml.py answers."""

from __future__ import annotations

from typing import Final

GPUS: Final = "gpus"
"""Query for each GPU's description, with its XID errors since the last such query."""
PROCESSES: Final = "processes"
"""Query for the memory and utilization of each GPU's processes."""
LINKS: Final = "links"
"""Query for the GPUs' NVLink groups. There is one answer, with the index BOARD."""
LIMITS: Final = "limits"
"""Request to set memory limits of control groups: by GPU its UUID, and the bytes by directory. The
answer has for each directory the hard limits before and after, or the error."""
BOARD: Final = -1
