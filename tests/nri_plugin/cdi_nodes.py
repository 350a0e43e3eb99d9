"""The driver's device nodes in a CDI spec, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nri_plugin.policy.model import Device

CONTROL: Final[Sequence[dict[str, Any]]] = tuple(
    {"path": path, "hostPath": "/dev/null"} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")
)
NODES: Final = ({"path": "/dev/nvidia0", "hostPath": "/dev/null"}, *CONTROL)
"""All that a GPU needs; any device node of the host serves."""
DEVICES: Final = tuple(Device(node["path"], "c", 1, 3) for node in NODES)
"""The same, as the agent reads it."""
