"""Detects the device nodes, variables and CDI names by which another program gives a GPU.

Pure. Source: NVIDIA's driver and NVIDIA's container toolkit (1.17 to 1.20). GPUs and their control
node have the major number 195. The driver's other nodes have dynamic major numbers, and are useless
without a node of major 195.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names

_MAJOR: Final = 195
_DRIVER: Final = "nvidia"
_LIBRARY: Final = "libcuda.so"
_NODE: Final = re.compile(r"/dev/nvidia[^/]*(/.*)?")
_NEEDED: Final = {
    "/dev/nvidiaN": re.compile(r"/dev/nvidia\d+"),
    "/dev/nvidiactl": re.compile(r"/dev/nvidiactl"),
    "/dev/nvidia-uvm": re.compile(r"/dev/nvidia-uvm"),
}
"""The device nodes without which no program can compute. N is the GPU's minor number."""
_WSL: Final = "/dev/dxg"
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
CREATE_NODES: Final = "nvidia-modprobe -c 0 -u"
"""The driver's command that creates the device nodes. `-c` takes a GPU's minor number."""
_NO_GPUS: Final = frozenset({"", "none", names.VISIBLE_DEVICES_NONE})
_WITHOUT_NVIDIA: Final = ("runc", "crun")
_CDI_VENDOR: Final = names.CDI_KIND.partition("/")[0]
_READ: Final = tuple(
    f"{name}="
    for name in (names.ENV_VISIBLE_DEVICES, names.ENV_CUDA_VERSION, names.ENV_REQUIRED_CUDA)
)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Which requests for GPUs NVIDIA's runtime accepts, with its defaults. of_unprivileged:
    variables of unprivileged containers count. Those of privileged containers always count.
    of_mounts: mounts of volumes count. other_variables: variables that override
    NVIDIA_VISIBLE_DEVICES."""

    of_unprivileged: bool = True
    of_mounts: bool = False
    other_variables: str = ""


def is_node(path: str, major: int) -> bool:
    """Whether a device node is one of NVIDIA's driver."""
    return major == _MAJOR or _NODE.fullmatch(path) is not None


def is_needed_node(path: str) -> bool:
    """Whether programs need this device node to compute on a GPU."""
    return path == _WSL or any(node.fullmatch(path) for node in _NEEDED.values())


def lacking_nodes(paths: Sequence[str]) -> Sequence[str]:
    """Return the keys of _NEEDED for which `paths` has no device node."""
    if _WSL in paths:
        return ()
    return [name for name, node in _NEEDED.items() if not any(map(node.fullmatch, paths))]


def is_driver(path: str) -> bool:
    """Whether a file is the driver's library libcuda.so, which every program needs."""
    return path.rpartition("/")[2].startswith(_LIBRARY)


def may_be_node(text: str) -> bool:
    """Whether a text may contain the path of a device node or a request. A fast filter: False for
    nearly all other texts."""
    return "/nvidia" in text and "dev" in text


def names_gpus(variable: str, value: str) -> bool:
    """Whether NVIDIA's container runtime would inject a GPU because of this variable."""
    return variable == names.ENV_VISIBLE_DEVICES and any(
        each.strip() not in _NO_GPUS for each in value.split(",")
    )


def asks_for_gpus(env: Iterable[str]) -> bool:
    """Whether NVIDIA's container runtime would inject GPUs because of these variables. The last
    value of each variable counts."""
    values = dict(line.split("=", 1) for line in env if line.startswith(_READ))
    visible = values.get(names.ENV_VISIBLE_DEVICES)
    if visible is not None:
        return names_gpus(names.ENV_VISIBLE_DEVICES, visible)
    return bool(values.get(names.ENV_CUDA_VERSION)) and not values.get(names.ENV_REQUIRED_CUDA)


def may_read_variables(runtime_handler: str, nvidia_default: bool) -> bool:
    """Whether NVIDIA's container runtime may run the container, and inject GPUs by variables."""
    return nvidia_default if not runtime_handler else runtime_handler not in _WITHOUT_NVIDIA


def is_request(path: str) -> bool:
    """Whether a mount at this path requests a GPU from NVIDIA's container runtime."""
    return path.startswith("/var/run/nvidia-container-devices/")


def is_of_vendor(cdi_name: str) -> bool:
    """Whether a CDI name's vendor is NVIDIA, for example nvidia.com or k8s.gpu.nvidia.com."""
    vendor = cdi_name.partition("/")[0]
    return vendor == _CDI_VENDOR or vendor.endswith(f".{_CDI_VENDOR}")


def driver_majors(devices: str) -> AbstractSet[int]:
    """Return the major numbers of the driver's device nodes. devices: /proc/devices' text."""
    lines = (line.split() for line in devices.splitlines())
    return {_MAJOR} | {
        int(words[0])
        for words in lines
        if len(words) == 2 and words[0].isdecimal() and words[1].startswith(_DRIVER)
    }
