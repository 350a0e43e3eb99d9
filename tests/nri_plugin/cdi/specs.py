"""CDI specs of GPUs, their edits, and a host for them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuslice.contract import names
from nri_plugin.host import cdi_reader
from nri_plugin.host.cdi_edits import Stat
from nri_plugin.policy.model import CdiDevice
from tests.nri_plugin.cdi_nodes import NODES

Edits = dict[str, Any]
LIBCUDA = "/usr/lib/libcuda.so.580"
NUMBERS: Mapping[str, tuple[int, int]] = {
    **{"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (511, 0), "/dev/host0": (195, 0)},
    **{"/dev/sd": (8, 1), "/dev/null": (1, 3)},
}


def spec(*devices: Mapping[str, Any], **fields: Any) -> str:
    """Return a CDI spec of these devices. A device without edits gets a GPU's device nodes."""
    whole = [{"containerEdits": {"deviceNodes": NODES}, **device} for device in devices]
    return json.dumps({"cdiVersion": "0.6.0", "kind": names.CDI_KIND, "devices": whole, **fields})


def gpu(edits: object, name: str = "G", **fields: Any) -> str:
    return spec({"name": name, "containerEdits": edits}, **fields)


def node(path: str, **fields: object) -> Edits:
    return {"deviceNodes": [{"path": path, **fields}]}


def mount(source: str, place: str) -> Edits:
    return {"mounts": [{"hostPath": source, "containerPath": place}]}


def hook(name: str, args: Sequence[object] = ()) -> Edits:
    return {"hooks": [{"hookName": name, "path": "/x", "args": [*args]}]}


def status(path: str) -> os.stat_result:
    """Return the status of a path on a host that has the files and device nodes named below."""
    if path in {"/dev/plain", "/a", LIBCUDA}:
        return os.stat_result([stat.S_IFREG | 0o644] + [0] * 9)
    if path not in NUMBERS:
        raise FileNotFoundError(2, "No such file or directory", path)
    kind = stat.S_IFBLK if path == "/dev/sd" else stat.S_IFCHR
    return os.stat_result([kind | 0o666] + [0] * 9, {"st_rdev": os.makedev(*NUMBERS[path])})


def read(directory: Path, text: str, name: str = "G", status: Stat = os.stat) -> CdiDevice:
    """Write this text into a file, and return its device as the agent reads it."""
    (directory / "s.json").write_text(text)
    return cdi_reader.load([directory], status=status).devices[name]
