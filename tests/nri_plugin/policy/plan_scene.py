"""A node of two GPUs, pods with an allocation or grants, and what the policy decides about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuslice.contract import allocation, grants, names
from gpuslice.contract.allocation import Allocation, DeviceEntry
from gpuslice.contract.grants import GpuGrant
from nri_plugin.policy import model
from nri_plugin.policy.model import CdiDevice, Container, Device, Edits, Gpu, Mount, Pod, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin import objects
from tests.support import GIB

A = Gpu("GPU-aaaaaaaa-0000-0000-0000-000000000000", 0, 40 * GIB)
B = Gpu("GPU-bbbbbbbb-0000-0000-0000-000000000000", 1, 80 * GIB)
FAILED = Gpu("GPU-failed", 9, GIB)
STORE = "/run/gpuslice/.store/abc/libvgpu.so"
PATHS = model.Paths("/run/gpuslice", STORE)
LIBCUDA = Mount("/usr/lib/libcuda.so.1", "/host/libcuda.so.1", ("bind", "ro"))
NVIDIA_CTK = ("nvidia-ctk", "update-ldcache")
LDCACHE = model.Hook(model.HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", NVIDIA_CTK)
COMMON = Edits(
    env=(("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_CTK", "x")),
    devices=(Device("/dev/nvidiactl", "c", 195, 255),),
    mounts=(LIBCUDA,),
    hooks=(LDCACHE,),
)


def device(gpu: Gpu, **changes: Any) -> CdiDevice:
    own = Edits(devices=(Device(f"/dev/nvidia{gpu.minor}", "c", 195, gpu.minor),))
    return replace(CdiDevice(gpu.uuid, "/etc/cdi/nvidia.yaml", own, COMMON), **changes)


def entry(uuid: str | None = A.uuid, minor: int = 0, **resources: int) -> DeviceEntry:
    """Return a GPU's allocation entry. resources: memory in bytes, ratio and core in percent."""
    keys = {"memory": names.RESOURCE_MEMORY, "ratio": names.RESOURCE_MEMORY_RATIO}
    keys["core"] = names.RESOURCE_CORE
    return DeviceEntry(minor, {keys[each]: amount for each, amount in resources.items()}, uuid)


SPECS = Specs({gpu.uuid: device(gpu) for gpu in (A, B)})
MAIN = Container("c0ffee", "main", env=("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
SIDE = replace(MAIN, name="side")
HALF = entry(ratio=50, core=50)
OTHER = entry(B.uuid, 1, memory=3 * GIB)
LABEL = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"}


def pod(
    entries: Sequence[DeviceEntry] | None = None,
    *,
    labels: Mapping[str, str] = LABEL,
    allocated: str | None = None,
    granted: str | None = None,
    uid: str = "0f0f-11",
    **containers: Sequence[GpuGrant],
) -> Pod:
    """Return a pod. entries: of its allocation. containers: grants by name. allocated, granted: the
    annotations' texts, if entries or containers are not given."""
    if entries is not None:
        allocated = allocation.encode(Allocation({"gpu": entries}))
    if containers:
        granted = grants.encode(containers)
    texts = {names.ANNOTATION_DEVICE_ALLOCATED: allocated, names.ANNOTATION_GRANTS: granted}
    annotations = {key: text for key, text in texts.items() if text is not None}
    return Pod(uid, "team", "train", labels, annotations)


def computing(of: Pod, **policies: str) -> Pod:
    """Return the pod with its compute policy (`pod`), and those of containers by their names."""
    keys = {each: f"{names.ANNOTATION_COMPUTE_PREFIX}{each}" for each in policies}
    keys["pod"] = names.ANNOTATION_COMPUTE
    written = {keys[each]: text for each, text in policies.items()}
    return replace(of, annotations={**of.annotations, **written})


def grant(gpu: Gpu, memory: int = 1, core: int = 50) -> GpuGrant:
    return GpuGrant(gpu.uuid, gpu.minor, memory, core)


def decide(
    of: Pod, container: Container = MAIN, specs: Specs = SPECS, paths: model.Paths = PATHS
) -> objects.Result:
    return objects.decide(of, container, (A, B), specs, paths)


def adjusted(*arguments: Any, **options: Any) -> ContainerPlan:
    decision = decide(*arguments, **options)
    assert isinstance(decision, ContainerPlan)
    return decision


def refused(reason: Reason, *arguments: Any, **options: Any) -> Refusal:
    decision = decide(*arguments, **options)
    assert isinstance(decision, Refusal) and decision.reason is reason
    return decision
