"""Detects GPUs that another program gave to a container, or will give: device nodes, variables,
CDI names.

Pure. Source: NVIDIA's driver (major 195 for GPUs and their control node; the other nodes have
dynamic majors and are useless without one of these) and NVIDIA's container toolkit (1.17 to 1.20).
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
"""N: the GPU's number."""
_WSL: Final = "/dev/dxg"
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
CREATE_NODES: Final = "nvidia-modprobe -c 0 -u"
"""The driver's own command, for every GPU by its number."""
_NO_GPUS: Final = frozenset({"", "none", names.VISIBLE_DEVICES_NONE})
_WITHOUT_NVIDIA: Final = ("runc", "crun")
_CDI_VENDOR: Final = names.CDI_KIND.partition("/")[0]
_READ: Final = tuple(
    f"{name}="
    for name in (names.ENV_VISIBLE_DEVICES, names.ENV_CUDA_VERSION, names.ENV_REQUIRED_CUDA)
)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Which requests for GPUs NVIDIA's runtime accepts, with its defaults. of_unprivileged: by
    variables of unprivileged containers; privileged ones may always. of_mounts: by volume mounts.
    other_variables: names of those that come before NVIDIA_VISIBLE_DEVICES."""

    of_unprivileged: bool = True
    of_mounts: bool = False
    other_variables: str = ""


def is_node(path: str, major: int) -> bool:
    """Whether a device node gives access to a GPU, or is needed for it."""
    return major == _MAJOR or _NODE.fullmatch(path) is not None


def is_needed_node(path: str) -> bool:
    """Whether no program can compute on a GPU without this device node."""
    return path == _WSL or any(node.fullmatch(path) for node in _NEEDED.values())


def lacking_nodes(paths: Sequence[str]) -> Sequence[str]:
    """Return the needed device nodes that are not among `paths`, as in _NEEDED."""
    if _WSL in paths:
        return ()
    return [name for name, node in _NEEDED.items() if not any(map(node.fullmatch, paths))]


def is_driver(path: str) -> bool:
    """Whether a file is the driver's library, without which no program can use a GPU."""
    return path.rpartition("/")[2].startswith(_LIBRARY)


def may_be_node(text: str) -> bool:
    """Fast filter: False for nearly all paths of nodes and requests, in any notation."""
    return "/nvidia" in text and "dev" in text


def names_gpus(variable: str, value: str) -> bool:
    """Whether NVIDIA's container runtime would inject a GPU because of this variable."""
    return variable == names.ENV_VISIBLE_DEVICES and any(
        each.strip() not in _NO_GPUS for each in value.split(",")
    )


def asks_for_gpus(env: Iterable[str]) -> bool:
    """Whether NVIDIA's container runtime would inject GPUs because of these variables, of which the
    last of the same name counts."""
    values = dict(line.split("=", 1) for line in env if line.startswith(_READ))
    visible = values.get(names.ENV_VISIBLE_DEVICES)
    if visible is not None:
        return names_gpus(names.ENV_VISIBLE_DEVICES, visible)
    return bool(values.get(names.ENV_CUDA_VERSION)) and not values.get(names.ENV_REQUIRED_CUDA)


def may_read_variables(runtime_handler: str, nvidia_default: bool) -> bool:
    """Whether NVIDIA's container runtime may run the container, and inject what variables name."""
    return nvidia_default if not runtime_handler else runtime_handler not in _WITHOUT_NVIDIA


def is_request(path: str) -> bool:
    """Whether a mount there requests the GPU of its name from NVIDIA's container runtime."""
    return path.startswith("/var/run/nvidia-container-devices/")


def is_of_vendor(cdi_name: str) -> bool:
    """Whether a CDI name is NVIDIA's, of any of its tools: nvidia.com, k8s.gpu.nvidia.com, ..."""
    vendor = cdi_name.partition("/")[0]
    return vendor == _CDI_VENDOR or vendor.endswith(f".{_CDI_VENDOR}")


def driver_majors(devices: str) -> AbstractSet[int]:
    """Return the major numbers of the driver's nodes, from the text of /proc/devices."""
    lines = (line.split() for line in devices.splitlines())
    return {_MAJOR} | {
        int(words[0])
        for words in lines
        if len(words) == 2 and words[0].isdecimal() and words[1].startswith(_DRIVER)
    }
