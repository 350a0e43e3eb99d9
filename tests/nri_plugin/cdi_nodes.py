"""The driver's device nodes in a CDI spec, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nri_plugin.policy.model import Device

CONTROL: Final[Sequence[dict[str, Any]]] = tuple(
    {"path": path, "hostPath": "/dev/null"} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")
)
NODES: Final = ({"path": "/dev/nvidia0", "hostPath": "/dev/null"}, *CONTROL)
"""All device nodes that a GPU needs. The host's /dev/null stands for each device node."""
DEVICES: Final = tuple(Device(node["path"], "c", 1, 3) for node in NODES)
"""The same nodes, as the agent reads them."""
