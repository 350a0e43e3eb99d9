"""Why a GPU that answers must not be used: the driver's recovery action, or an XID error. Pure.

The driver names the action that the GPU needs as long as it needs it. Drivers before release 570
have no such field. There an XID error of the GPU itself counts until the driver is loaded again,
because NVML reports when a GPU fails and not when it has recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ACTIONS: Final[Mapping[int, str]] = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end the programs that use it together with other GPUs (drain P2P)",
    4: "end its programs and reset the GPU (drain and reset)",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the system",
}
"""By nvmlDeviceGpuRecoveryAction_t. 0: none."""

XIDS: Final[Mapping[int, str]] = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
}
"""Errors after which a GPU needs a reset, from NVIDIA's catalog. Programs cause most of the others.
63 reports a row that was remapped, 94 an error that ended one program, and 154 a change of the
recovery action, which drivers send that have the field."""


def problem(recovery: int | None, xid: int | None) -> str:
    """Return why the GPU must not be used; "": nothing is known. recovery: None where the driver
    has no such field."""
    if recovery is not None:
        action = ACTIONS.get(recovery, f"recovery action {recovery}")
        return f"the driver reports that it needs recovery: {action}" if recovery else ""
    if xid is None or xid not in XIDS:
        return ""
    return f"the driver reported XID {xid} ({XIDS[xid]})"
