"""The node's ResourceSlice: one device per GPU, which kube-scheduler divides by memory and compute.

Pure. On a node kube-scheduler takes the first device that fits. Therefore the fullest GPU is first.
A failed GPU is tainted: its device stays, so that existing allocations of it stay valid. A GPU that
cannot be shared at all is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.quantity import format_binary
from gpuslice.kube.fields import Json, at, objects
from nri_plugin.policy.device_claims import device_name
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.memory_limits import MIG_MODE
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.totals import Entry

PATH: Final = f"/apis/{names.DRA_API_VERSION}/resourceslices"
_STRING_MAX: Final = 64


def left_out(entry: Entry) -> str:
    """Return why the slice has no device for the GPU. "": it has one."""
    gpu = entry.gpu
    if gpu.problem == MIG_MODE or gpu.memory_bytes < names.CAPACITY_MEMORY_STEP:
        return gpu.problem or "its memory is not known"
    return "" if entry.mode is Mode.SHARED else entry.why


def resource_slice(
    node_name: str, node_uid: str, entries: Iterable[Entry], used: Mapping[str, int], ready: bool
) -> Json:
    """Return the slice. used: bytes that claims have of each device. ready: the agent can serve
    containers now."""
    listed = [entry.gpu for entry in entries if not left_out(entry)]
    listed.sort(key=lambda gpu: (-used.get(device_name(gpu), 0), gpu.minor))
    node = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}
    return {
        "apiVersion": names.DRA_API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": name(node_name), "ownerReferences": [node]},
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(gpu, ready) for gpu in listed],
        },
    }


def name(node_name: str) -> str:
    return f"{node_name}-{names.DRA_DRIVER}"


def differs(current: Json, desired: Json) -> bool:
    """Whether the stored slice must be replaced. The API server adds the times of taints."""
    spec = dict(at(current, "spec"))
    spec["devices"] = [
        {
            **device,
            "taints": [
                {key: taint.get(key) for key in ("key", "effect")}
                for taint in objects(device, "taints")
            ],
        }
        for device in objects(spec, "devices")
    ]
    return bool(spec != desired["spec"])


def _device(gpu: Gpu, ready: bool) -> Json:
    top = format_binary(gpu.memory_bytes // names.CAPACITY_MEMORY_STEP * names.CAPACITY_MEMORY_STEP)
    texts = {
        names.ATTRIBUTE_UUID: gpu.uuid,
        names.ATTRIBUTE_MODEL: gpu.model[:_STRING_MAX],
        names.ATTRIBUTE_PCI_ROOT: gpu.root,
    }
    step = format_binary(names.CAPACITY_MEMORY_STEP)
    return {
        "name": device_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": {
            **{key: {"string": text} for key, text in texts.items() if text},
            names.ATTRIBUTE_MINOR: {"int": gpu.minor},
        },
        "capacity": {
            names.CAPACITY_MEMORY: _capacity(top, step, step),
            names.CAPACITY_CORE: _capacity("100", "0", "1"),
        },
        "taints": [*_taints(gpu, ready)],
    }


def _capacity(top: str, least: str, step: str) -> Json:
    """Return a capacity of which a claim gets all unless it requests a part."""
    valid = {"min": least, "max": top, "step": step}
    return {"value": top, "requestPolicy": {"default": top, "validRange": valid}}


def _taints(gpu: Gpu, ready: bool) -> Iterator[Json]:
    if gpu.problem:
        effect = "NoExecute" if gpu.lost else "NoSchedule"
        yield {"key": names.TAINT_UNHEALTHY, "effect": effect}
    if not ready:
        yield {"key": names.TAINT_NOT_READY, "effect": "NoSchedule"}
