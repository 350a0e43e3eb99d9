"""HAMi's dialect: containers request amounts per GPU. Annotations select GPUs and a policy.

HAMi reduces or ignores an amount that it cannot use, and the container may then run without a
limit. This reader refuses such an amount. `nvidia.com/gpu` alone requests whole GPUs. Source: HAMi
pkg/device/nvidia/device.go, pkg/scheduler/webhook.go and pkg/util (policies).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuslice.contract import dialects, grant_file, names
from scheduler.core.request import (
    WHOLE_PERCENT,
    Attribute,
    ContainerRequest,
    Policy,
    Requirement,
    Scope,
    ratio_of_percent,
)
from scheduler.dialects.reading import (
    FOREIGN,
    GPUS,
    MIB,
    MIB_BYTES,
    PERCENT,
    POLICIES,
    Bound,
    Container,
    Json,
    Outputs,
    PodFields,
    Reading,
    RequestError,
    annotation,
    invalid,
)

_GPU: Final = dialects.HAMI_GPU
_VGPU: Final = dialects.HAMI_VGPU
_MEMORY: Final = dialects.HAMI_MEMORY
_PERCENT: Final = dialects.HAMI_MEMORY_PERCENT
_CORES: Final = dialects.HAMI_CORES
_PRIORITY: Final = dialects.HAMI_PRIORITY
_BOUNDS: Final[Mapping[str, Bound]] = {
    _GPU: GPUS,
    _VGPU: GPUS,
    _MEMORY: MIB,
    _PERCENT: PERCENT,
    _CORES: PERCENT,
    _PRIORITY: Bound(1, "0 or 1"),
}
_PREFERENCES: Final = ("numa", "topology-aware")
"""Policies of GPUs that gpuslice follows always: it prefers GPUs that are near to each other."""
_POLICIES: Final = (
    f"a list of {', '.join((*POLICIES, *_PREFERENCES))}; instead of mutex request"
    f" {_CORES}: {WHOLE_PERCENT}"
)
_TRUE: Final = frozenset(("1", "t", "T", "true", "True", "TRUE"))
_FALSE: Final = frozenset(("0", "f", "F", "false", "False", "FALSE"))
_VENDOR: Final = "nvidia-"
"""The prefix of models' names in HAMi, where it is in upper case."""
_MAX_NAMED: Final = 63 - len("compute.")
"""The length of the longest container name that fits into ANNOTATION_COMPUTE_PREFIX's keys."""
_MAX_NAMES: Final = 1000
"""The most names in a list. Each UUID is compared with every GPU of the cluster."""


def read(pod: PodFields) -> Reading | None:
    requests, notices, written_policies = [], [], {}
    for container in pod.containers:
        # HAMi reads the limit. The API server requires request and limit to be equal.
        written = {**container.requests, **container.limits}
        amounts = container.amounts(written, _BOUNDS)
        if not amounts:
            continue
        requests.append(_container_request(container, amounts, written))
        key = f"{names.ANNOTATION_COMPUTE_PREFIX}{container.name}"
        setting, compute_policy = _compute_policy(container, amounts)
        if compute_policy is None or key in pod.annotations:
            continue
        if len(container.name) > _MAX_NAMED:
            notices.append(
                f"{container.field(setting)} has no effect: the container's name has more than"
                f" {_MAX_NAMED} characters; use {annotation(names.ANNOTATION_COMPUTE)}"
            )
        else:
            written_policies[key] = compute_policy.value
    if not requests:
        return None
    for container in pod.containers:
        if container.privileged:
            must_be = (
                "false in a pod that requests a share of a GPU, as a privileged container can use"
                " every GPU of its node"
            )
            raise invalid(container.field("securityContext.privileged"), "true", must_be)
    of_nodes = _policy(pod.annotations, dialects.HAMI_NODE_POLICY)
    of_gpus = _policy(pod.annotations, dialects.HAMI_GPU_POLICY)
    if of_nodes and of_gpus and of_nodes is not of_gpus:
        notices.append(
            f"{annotation(dialects.HAMI_NODE_POLICY)}: {of_nodes.value} has no effect:"
            f" {dialects.HAMI_GPU_POLICY}, {of_gpus.value}, ranks nodes and GPUs"
        )
    unread = [key for key in dialects.HAMI_UNREAD if key in pod.annotations]
    notices += [f"{annotation(key)} has no effect in gpuslice" for key in unread]
    return Reading(
        requests,
        of_gpus or of_nodes,
        tuple(_selector(pod.annotations)),
        _scope(pod.annotations, requests),
        foreign=FOREIGN - {_GPU},
        notices=notices,
        outputs=lambda placement, gpus, now_ns: Outputs(annotations=written_policies),
    )


def _compute_policy(
    container: Container, amounts: Mapping[str, int]
) -> tuple[str, grant_file.Policy | None]:
    """Return the setting of HAMi's that decides the container's compute policy, and the policy."""
    if _PRIORITY in amounts:
        return f"{_PRIORITY}: 1", grant_file.Policy.BACKGROUND
    if container.core_policy == "force":
        return f"env {dialects.HAMI_CORE_POLICY}: force", grant_file.Policy.CAPPED
    return "", None


def _container_request(
    container: Container, amounts: Mapping[str, int], written: Json
) -> ContainerRequest:
    if amounts.keys() == {_PRIORITY}:
        others = ", ".join(dialects.HAMI.resources[:-1])
        must_be = f"absent without one of {others}"
        raise invalid(container.field(_PRIORITY), written[_PRIORITY], must_be)
    if _GPU in amounts and _VGPU in amounts:
        raise invalid(container.field(_VGPU), written[_VGPU], f"absent beside {_GPU}")
    gpus = amounts.get(_GPU) or amounts.get(_VGPU)
    for name in (_GPU, _VGPU):
        if name in written and gpus is None:
            raise invalid(container.field(name), written[name], GPUS.allowed)
    gpus, core = gpus or 1, amounts.get(_CORES)
    if _MEMORY in amounts:
        return container.request(gpus, core, amounts[_MEMORY] * MIB_BYTES)
    ratio = ratio_of_percent(amounts.get(_PERCENT, WHOLE_PERCENT))
    if ratio == 1 and core is None:
        core = WHOLE_PERCENT
    return container.request(gpus, core, memory_ratio=ratio)


def _policy(annotations: Mapping[str, str], key: str) -> Policy | None:
    """Return the first policy of the list that ranks by use. An empty annotation counts as absent,
    as in HAMi."""
    text = annotations.get(key)
    chosen = [each.strip() for each in text.split(",")] if text else []
    if not {*chosen} <= {*POLICIES, *_PREFERENCES}:
        raise invalid(annotation(key), repr(text), _POLICIES)
    return next((POLICIES[each] for each in chosen if each in POLICIES), None)


def _scope(annotations: Mapping[str, str], requests: Sequence[ContainerRequest]) -> Scope:
    text = annotations.get(dialects.HAMI_NUMA_BIND, "false")
    if text not in _TRUE | _FALSE:
        raise invalid(annotation(dialects.HAMI_NUMA_BIND), repr(text), "true or false")
    has_several = any(requested.gpus > 1 for requested in requests)
    return Scope.NUMA_NODE if has_several and text in _TRUE else Scope.NODE


def _selector(annotations: Mapping[str, str]) -> Iterator[Requirement]:
    for key, negated in ((dialects.HAMI_USE_TYPE, False), (dialects.HAMI_NO_USE_TYPE, True)):
        if key in annotations:
            parts = {part for name in _listed(annotations, key) for part in _parts(name.lower())}
            yield Requirement("", frozenset(parts), negated, Attribute.MODEL)
    for key, negated in ((dialects.HAMI_USE_UUID, False), (dialects.HAMI_NO_USE_UUID, True)):
        if key in annotations:
            listed = frozenset(_listed(annotations, key))
            yield Requirement("", listed, negated, Attribute.UUID)


def _parts(name: str) -> Sequence[str]:
    """Return the texts to search in a model's name: `name` with and without HAMi's prefix."""
    return ("",) if name in _VENDOR else (name, name.removeprefix(_VENDOR))


def _listed(annotations: Mapping[str, str], key: str) -> Sequence[str]:
    """Return the annotation's names. Refuse an empty list: HAMi would match all GPUs or none."""
    listed = [each.strip() for each in annotations[key].split(",")]
    if len(listed) > _MAX_NAMES:
        raise RequestError(
            f"{annotation(key)}: invalid value of {len(listed)} names: must be at most"
            f" {_MAX_NAMES} names; use the node's annotation {names.ANNOTATION_EXCLUDED_GPUS}, or a"
            " nodeSelector"
        )
    if not any(listed):
        raise invalid(annotation(key), repr(annotations[key]), "names, separated by commas")
    return [each for each in listed if each]
