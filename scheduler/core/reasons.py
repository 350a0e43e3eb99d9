"""Reasons why a node does not fit. Each has a number for arrays, and a text for people.

kube-scheduler counts identical texts over its nodes, so a text contains no node's name and no
number that differs between nodes.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Reason(IntEnum):
    """The reasons, each at most 255 for uint8. If several apply, the smallest one is reported."""

    text: str

    def __new__(cls, value: int, text: str = "") -> Reason:
        made = int.__new__(cls, value)
        made._value_, made.text = value, text
        return made

    FITS = 0, "fits"
    NODE_UNKNOWN = 1, "the GPU scheduler has not received this node yet"
    NO_DEVICE = 2, "node has no GPU inventory (Device object)"
    DEVICE_STALE = 3, "GPU inventory is of a former node of this name"
    DEVICE_UNREADABLE = 4, "GPU inventory (Device object) cannot be read"
    AGENT_MISSING = 5, "no GPU node agent has reported"
    AGENT_LEASE_EXPIRED = 6, "GPU node agent has not renewed its Lease"
    AGENT_NOT_READY = 7, "GPU node agent is not ready"
    NOT_ISOLATING = 8, "node does not isolate GPU shares"
    PARTITIONED = (
        9,
        "several whole GPUs are not placed on a node with the label"
        " gpu-partition-policy: Honor, whose partition table is not supported",
    )
    TOO_FEW_GPUS = 10, "node has fewer GPUs than requested"
    NO_GPU_SELECTED = 11, "no GPU matches the selector"
    GPU_TOO_SMALL = 12, "every GPU is smaller than the requested memory"
    NO_USABLE_GPU = 13, "too few healthy GPUs that are neither cordoned nor excluded"
    MEMORY = 14, "no GPU with enough free memory"
    CORE = 15, "no GPU with enough free core"
    MEMORY_AND_CORE = 16, "no GPU with enough free memory and core at once"
    GPUS = 17, "too few GPUs with free capacity"
    SCOPE = 18, "too few GPUs with free capacity within the required topology scope"
    TOGETHER = 19, "GPUs have too little free capacity for all containers together"
    LEASES_LOST = 20, "the GPU scheduler cannot watch the Leases of GPU node agents"
