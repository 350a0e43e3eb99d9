"""Reads containers' claims from their pods' annotations. Pure.

A pod without a grant and without an allocation is not changed. In a pod with a grant, a container
that the grant does not name starts without a GPU, even if a GPU has failed. An inconsistent grant
refuses the containers that it names. An unreadable grant refuses all of the pod's containers,
because it does not show which of them have a share. An unreadable allocation refuses only the
containers of a pod that requests a share by the label or a grant. In other pods it grants no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gpuslice.contract import allocation, dialects, grants, names, quantity
from gpuslice.contract.grant_file import Policy
from nri_plugin.policy.model import Claim, Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refused, refused

_DEFAULT_CORE_PERCENT: Final = 100
"""The percent of compute of an entry without gpu-core. Koordinator omits gpu-core if a pod requests
only memory. The compute of such a pod is not limited."""

_VARIABLES: Final = tuple(name for each in dialects.DIALECTS for name in each.environment)
_VARIABLES_TEXT: Final = ", ".join(_VARIABLES)

_LABEL_ALONE: Final = (
    f"label {names.LABEL_ISOLATION_PROVIDER} is set, but the pod has no GPU allocation: it starts"
    f" without a GPU. To get a share, set schedulerName to {names.SCHEDULER_NAME} and request"
    f" {names.RESOURCE_CORE} or {names.RESOURCE_MEMORY_RATIO}"
)


def may_claim(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether a pod has a GPU label or annotation. Other pods have no claim."""
    return (
        names.LABEL_ISOLATION_PROVIDER in labels
        or names.ANNOTATION_DEVICE_ALLOCATED in annotations
        or names.ANNOTATION_GRANTS in annotations
    )


def has_shares(pod: Pod) -> bool:
    """Whether the pod was allocated GPUs. True also if its annotations are invalid."""
    try:
        return _grants(pod) is not None or bool(_entries(pod))
    except Refused:
        return True


def claim(pod: Pod, container_name: str, gpus: Sequence[Gpu]) -> Claim | None:
    """Return what the container was granted. None: its pod requests no GPU. Raises Refused if
    the container's grant is invalid or cannot be fulfilled."""
    granted = _grants(pod)
    if granted is not None:
        listed = container_name in granted.containers
        return _of_container(pod, container_name, granted, gpus) if listed else Claim()
    entries = _entries(pod)
    if not entries:
        warning = _LABEL_ALONE if _has_label(pod) else _unreadable(pod)
        return Claim(warning=warning) if warning else None
    pool = _resolve(enumerate(_sharable(pod, entries)), gpus)
    policy = compute_policy(pod)
    return Claim(pool, shared=True, allocated=pool, policy=policy)


def gpus(annotations: Mapping[str, str]) -> Sequence[allocation.DeviceEntry]:
    """Return the GPUs of a pod's allocation, or none if the annotation is unreadable."""
    text = annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    try:
        return _allocation(text).gpus if text is not None else ()
    except allocation.AllocationError:
        return ()


def allocated(pod: Pod, gpus: Sequence[Gpu]) -> Sequence[Share]:
    """Return what the pod's containers may hold together. Raises Refused if a container's grant is
    invalid or cannot be fulfilled."""
    pool = _resolve(enumerate(_entries(pod)), gpus)
    granted = _grants(pod)
    for name, listed in granted.containers.items() if granted else ():
        _shares(name, listed, pool)
    return pool


def _of_container(pod: Pod, name: str, granted: grants.Document, gpus: Sequence[Gpu]) -> Claim:
    listed, variables = granted.containers[name], granted.environment.get(name, {})
    unknown = [variable for variable in variables if variable not in _VARIABLES]
    if unknown:
        problem = f"env.{name}: invalid variable {unknown[0]}: must be one of {_VARIABLES_TEXT}"
        raise refused(Reason.GRANTS_MALFORMED, problem=problem)
    entries = _sharable(pod, _entries(pod))
    if not entries:
        raise refused(Reason.GRANTS_ALONE)
    # Resolve only this container's GPUs. A failure of another GPU must not refuse the container.
    used = (
        (index, entry)
        for index, entry in enumerate(entries)
        if any(entry.id == gpu.id or entry.minor == gpu.minor for gpu in listed)
    )
    pool = _resolve(used, gpus)
    shares, env = _shares(name, listed, pool), tuple(variables.items())
    policy = compute_policy(pod, name)
    return Claim(shares, allocated=pool, env=env, by_index=granted.by_index, policy=policy)


def compute_policy(pod: Pod, container: str = "") -> Policy | None:
    """Return the compute policy that the container's or its pod's annotation chooses, if any."""
    for key in (f"{names.ANNOTATION_COMPUTE_PREFIX}{container}", names.ANNOTATION_COMPUTE):
        text = pod.annotations.get(key)
        if text is None:
            continue
        if text not in {*Policy}:
            raise refused(Reason.COMPUTE_POLICY_INVALID, key=key, value=text)
        return Policy(text)
    return None


def is_uncapped(pod: Pod, uuid: str, minor: int, core_percent: int) -> bool:
    """Whether a container with this percentage of the GPU requested no compute."""
    try:
        entries = _entries(pod)
    except Refused:
        return False
    return any(
        entry.id in (None, uuid) and entry.minor == minor and _is_uncapped(entry, core_percent)
        for entry in entries
    )


def _is_uncapped(entry: allocation.DeviceEntry, core_percent: int) -> bool:
    """An allocation may name no compute. 100 percent of an allocation of less is only a limit."""
    allocated = entry.resources.get(names.RESOURCE_CORE)
    return allocated is None or core_percent == 100 > allocated


def _entries(pod: Pod) -> Sequence[allocation.DeviceEntry]:
    """Return the GPUs of the pod's allocation. Raises Refused if it is unreadable, except in a pod
    that requests no share."""
    text = pod.annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    if text is None or _unreadable(pod):
        return ()
    try:
        entries = _allocation(text).gpus
    except allocation.AllocationError as error:
        raise refused(Reason.ALLOCATION_MALFORMED, problem=error) from error
    if len(entries) > names.MAX_GPUS:
        raise refused(Reason.TOO_MANY_GPUS, count=len(entries))
    return entries


def _sharable(
    pod: Pod, entries: Sequence[allocation.DeviceEntry]
) -> Sequence[allocation.DeviceEntry]:
    """Return the entries. Raises Refused if the pod's label names another isolation provider."""
    label = pod.labels.get(names.LABEL_ISOLATION_PROVIDER)
    if entries and label is not None and label.lower() != names.ISOLATION_PROVIDER:
        raise refused(Reason.PROVIDER_UNKNOWN, value=label)
    return entries


def _unreadable(pod: Pod) -> str:
    """Return a warning if a pod that requests no share has an unreadable allocation, else ""."""
    text = pod.annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    if text is None or _has_label(pod) or names.ANNOTATION_GRANTS in pod.annotations:
        return ""
    try:
        _allocation(text)
    except allocation.UnreadableError as error:
        where = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}"
        return f"{where}: {error}: it starts without a GPU"
    except allocation.AllocationError:
        pass
    return ""


def _has_label(pod: Pod) -> bool:
    label = pod.labels.get(names.LABEL_ISOLATION_PROVIDER, "")
    return label.lower() == names.ISOLATION_PROVIDER


def _grants(pod: Pod) -> grants.Document | None:
    text = pod.annotations.get(names.ANNOTATION_GRANTS)
    if text is None:
        return None
    try:
        return _granted(text)
    except grants.GrantsError as error:
        raise refused(Reason.GRANTS_MALFORMED, problem=error) from error


# The results are cached, because the grants of a node's pods are parsed again in each check.
_allocation: Final = lru_cache(maxsize=256)(allocation.decode)
_granted: Final = lru_cache(maxsize=256)(grants.parse)


def _resolve(
    entries: Iterable[tuple[int, allocation.DeviceEntry]], gpus: Sequence[Gpu]
) -> Sequence[Share]:
    """Convert entries of an allocation to exact bytes and percent of this node's GPUs. entries:
    pairs of the position in the annotation and the entry."""
    shares: list[Share] = []
    for index, entry in entries:
        where = f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}: {names.DEVICE_TYPE_GPU}[{index}]"
        gpu = _find(where, gpus, entry.id, entry.minor)
        if any(share.uuid == gpu.uuid for share in shares):
            raise refused(Reason.GPU_TWICE, where=where, uuid=gpu.uuid)
        memory, core = _memory(where, entry, gpu), _core(where, entry)
        shares.append(Share(gpu.uuid, gpu.minor, memory, core, _is_uncapped(entry, core)))
    return tuple(shares)


def _find(where: str, gpus: Sequence[Gpu], uuid: str | None, minor: int) -> Gpu:
    """Find the GPU by UUID, or by minor where an older Koordinator wrote no UUID."""
    for gpu in gpus:
        if gpu.uuid == uuid or (uuid is None and gpu.minor == minor):
            if gpu.problem:
                raise refused(Reason.GPU_UNHEALTHY, where=where, uuid=gpu.uuid, problem=gpu.problem)
            if gpu.minor != minor:
                fields = {"uuid": gpu.uuid, "actual": gpu.minor, "minor": minor}
                raise refused(Reason.GPU_MISMATCH, where=where, **fields)
            return gpu
    known = ", ".join(f"{gpu.uuid} as minor {gpu.minor}" for gpu in gpus) or "none"
    wanted = f"a GPU with minor {minor}" if uuid is None else uuid
    raise refused(Reason.GPU_UNKNOWN, where=where, gpu=wanted, known=known)


def _memory(where: str, entry: allocation.DeviceEntry, gpu: Gpu) -> int:
    amount = entry.resources.get(names.RESOURCE_MEMORY)
    if amount is None:
        ratio = entry.resources.get(names.RESOURCE_MEMORY_RATIO)
        if ratio is None:
            raise refused(Reason.MEMORY_MISSING, where=where)
        amount = quantity.share_of(gpu.memory_bytes, ratio)
    if not 1 <= amount <= gpu.most_bytes:
        raise refused(Reason.MEMORY_OUT_OF_RANGE, where=where, value=amount, total=gpu.most_bytes)
    return amount


def _core(where: str, entry: allocation.DeviceEntry) -> int:
    percent = entry.resources.get(names.RESOURCE_CORE, _DEFAULT_CORE_PERCENT)
    if percent > 100:
        raise refused(Reason.CORE_OUT_OF_RANGE, where=where, value=percent)
    return percent


def _shares(name: str, listed: Sequence[grants.GpuGrant], pool: Sequence[Share]) -> Sequence[Share]:
    """Convert a container's grant to shares. Raises Refused if it exceeds the pod's allocation.

    The sum over all containers may exceed the allocation, because an init container ends before the
    next container starts. The ledger checks the containers that run at the same time.
    """
    by_uuid = {share.uuid: share for share in pool}
    shares = []
    for index, gpu in enumerate(listed):
        where = f"containers.{name}[{index}]"
        share = by_uuid.get(gpu.id)
        if share is None or share.minor != gpu.minor:
            gpu_text = f"{gpu.id} as minor {gpu.minor}"
            raise refused(Reason.GRANT_NOT_ALLOCATED, where=where, gpu=gpu_text)
        uncapped = share.uncapped or gpu.core_percent == 100 > share.core_percent
        for what, value, allowed in (
            ("memory", gpu.memory_bytes, share.memory_bytes),
            ("core", 0 if uncapped else gpu.core_percent, share.core_percent),
        ):
            if value > allowed:
                fields = {"what": what, "value": value, "allowed": allowed}
                raise refused(Reason.GRANT_OVER_ALLOCATION, where=where, uuid=gpu.id, **fields)
        shares.append(Share(gpu.id, gpu.minor, gpu.memory_bytes, gpu.core_percent, uncapped))
    return tuple(shares)
