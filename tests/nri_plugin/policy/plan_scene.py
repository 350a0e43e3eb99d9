"""A node of two GPUs, pods with an allocation or grants, and what the policy decides about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuslice.contract import allocation, grants, names
from gpuslice.contract.allocation import Allocation, DeviceEntry
from gpuslice.contract.grants import GpuGrant
from nri_plugin.policy.model import (
    CdiDevice,
    Container,
    Device,
    Edits,
    Gpu,
    Hook,
    HookStage,
    Mount,
    Paths,
    Pod,
    Specs,
)
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refusal
from tests.nri_plugin import objects
from tests.support import GIB

A = Gpu("GPU-aaaaaaaa-0000-0000-0000-000000000000", 0, 40 * GIB)
B = Gpu("GPU-bbbbbbbb-0000-0000-0000-000000000000", 1, 80 * GIB)
GPUS = (A, B)
STORE = "/run/gpuslice/.store/abc/libvgpu.so"
PATHS = Paths("/run/gpuslice", STORE)
LIBCUDA = Mount("/usr/lib/libcuda.so.1", "/host/libcuda.so.1", ("bind", "ro"))
LDCACHE = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-ctk", ("nvidia-ctk", "update-ldcache"))
COMMON = Edits(
    env=(("NVIDIA_VISIBLE_DEVICES", "void"), ("NVIDIA_CTK", "x")),
    devices=(Device("/dev/nvidiactl", "c", 195, 255),),
    mounts=(LIBCUDA,),
    hooks=(LDCACHE,),
)


def device(gpu: Gpu, **changes: Any) -> CdiDevice:
    own = Edits(devices=(Device(f"/dev/nvidia{gpu.minor}", "c", 195, gpu.minor),))
    return replace(CdiDevice(gpu.uuid, "/etc/cdi/nvidia.yaml", own, COMMON), **changes)


SPECS = Specs({gpu.uuid: device(gpu) for gpu in GPUS})
MAIN = Container("c0ffee", "main", env=("PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"))
HALF = DeviceEntry(0, {names.RESOURCE_MEMORY_RATIO: 50, names.RESOURCE_CORE: 50}, A.uuid)
OTHER = DeviceEntry(1, {names.RESOURCE_MEMORY: 3 * GIB}, B.uuid)
LABEL = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"}


def pod(
    entries: Sequence[DeviceEntry] | None = None,
    granted: Mapping[str, Sequence[GpuGrant]] | None = None,
    *,
    labels: Mapping[str, str] = LABEL,
    allocated: str | None = None,
    granted_text: str | None = None,
    uid: str = "0f0f-11",
) -> Pod:
    annotations = {}
    if entries is not None:
        allocated = allocation.encode(Allocation({"gpu": entries}))
    if allocated is not None:
        annotations[names.ANNOTATION_DEVICE_ALLOCATED] = allocated
    if granted is not None:
        granted_text = grants.encode(granted)
    if granted_text is not None:
        annotations[names.ANNOTATION_GRANTS] = granted_text
    return Pod(uid, "team", "train", labels, annotations)


def grant(gpu: Gpu, memory: int, core: int = 50) -> GpuGrant:
    return GpuGrant(gpu.uuid, gpu.minor, memory, core)


def decide(
    of: Pod,
    container: Container = MAIN,
    specs: Specs = SPECS,
    paths: Paths = PATHS,
    gpus: Sequence[Gpu] = GPUS,
) -> objects.Result:
    return objects.decide(of, container, gpus, specs, paths)


def adjusted(*arguments: Any, **options: Any) -> ContainerPlan:
    decision = decide(*arguments, **options)
    assert isinstance(decision, ContainerPlan)
    return decision


def refused(reason: Reason, *arguments: Any, **options: Any) -> Refusal:
    decision = decide(*arguments, **options)
    assert isinstance(decision, Refusal) and decision.reason is reason
    return decision


def entry(resources: Mapping[str, int], uuid: str | None = A.uuid, minor: int = 0) -> DeviceEntry:
    return DeviceEntry(minor, resources, uuid)


MEMORY, RATIO, CORE = names.RESOURCE_MEMORY, names.RESOURCE_MEMORY_RATIO, names.RESOURCE_CORE

FAILED = GpuGrant("GPU-failed", 9, 1, 1)

SIDE = replace(MAIN, name="side")
