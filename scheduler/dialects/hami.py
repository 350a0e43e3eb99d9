"""HAMi's dialect: each container's resources per GPU, and the pod's annotations on GPUs and policy.

HAMi clamps or drops an amount that it cannot use, and then limits nothing; this reader refuses it.
`nvidia.com/gpu` alone requests whole GPUs. Source: HAMi pkg/device/nvidia/device.go and
pkg/scheduler/webhook.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpuslice.contract import dialects, names
from scheduler.core.fleet import MAX_BYTES
from scheduler.core.request import (
    WHOLE_PERCENT,
    Attribute,
    ContainerRequest,
    Policy,
    Requirement,
    ratio_of_percent,
)
from scheduler.dialects.reading import (
    FOREIGN,
    Container,
    PodFields,
    Reading,
    RequestError,
    amount,
    is_in_bytes,
    policy,
)

_GPU: Final = dialects.HAMI_GPU
_MEMORY: Final = dialects.HAMI_MEMORY
_PERCENT: Final = dialects.HAMI_MEMORY_PERCENT
_CORES: Final = dialects.HAMI_CORES
_PRIORITY: Final = dialects.HAMI_PRIORITY
_MIB: Final = 2**20
_VENDOR: Final = "nvidia-"
"""HAMi puts it before the models that it matches, in upper case."""
_MAX: Final = {
    _GPU: names.MAX_GPUS,
    _MEMORY: MAX_BYTES // _MIB,
    _PERCENT: WHOLE_PERCENT,
    _CORES: WHOLE_PERCENT,
    _PRIORITY: 1,
}
_MAX_NAMES: Final = 1000
"""In a list. Each UUID is compared with every GPU of the cluster."""


def read(pod: PodFields) -> Reading | None:
    amounts = {container.name: _amounts(container) for container in pod.containers}
    requests = [
        _container_request(each, amounts[each.name])
        for each in pod.containers
        if amounts[each.name]
    ]
    if not requests:
        return None
    for container in pod.containers:
        if container.privileged:
            raise RequestError(
                f"container {container.name}: securityContext.privileged: invalid value true: must"
                " be false in a pod that requests a share of a GPU, as a privileged container can"
                " use every GPU of its node"
            )
    of_nodes = _policy(pod.annotations, dialects.HAMI_NODE_POLICY)
    of_gpus = _policy(pod.annotations, dialects.HAMI_GPU_POLICY)
    notices = [
        f"container {name}: {_PRIORITY}: 1 has no effect: containers of a GPU run in turn, by their"
        f" {_CORES}"
        for name, each in amounts.items()
        if _PRIORITY in each
    ]
    if of_nodes and of_gpus and of_nodes is not of_gpus:
        notices.append(
            f"metadata.annotations[{dialects.HAMI_NODE_POLICY}]: {of_nodes.value} has no effect:"
            f" {dialects.HAMI_GPU_POLICY}, {of_gpus.value}, ranks nodes and GPUs"
        )
    return Reading(
        requests,
        of_gpus or of_nodes,
        tuple(_selector(pod.annotations)),
        foreign=FOREIGN - {_GPU},
        notices=notices,
    )


def _amounts(container: Container) -> Mapping[str, int]:
    """Amounts above zero, by resource."""
    resources = dialects.HAMI.resources
    amounts = {name: amount(container, name, _written(container, name)) for name in resources}
    return {name: asked for name, asked in amounts.items() if asked}


def _container_request(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
    for name, asked in amounts.items():
        in_bytes = name == _MEMORY and is_in_bytes(_written(container, name))
        if asked > _MAX[name] or in_bytes:
            raise _invalid(container, name, _allowed(name))
    if amounts.keys() == {_PRIORITY}:
        of = ", ".join(dialects.HAMI.resources[:-1])
        raise _invalid(container, _PRIORITY, f"absent without one of {of}")
    if _GPU not in amounts and _written(container, _GPU) is not None:
        raise _invalid(container, _GPU, _allowed(_GPU))
    core, size, ratio = amounts.get(_CORES), None, None
    if _MEMORY in amounts:
        size = amounts[_MEMORY] * _MIB
    else:
        ratio = ratio_of_percent(amounts.get(_PERCENT, WHOLE_PERCENT))
        if ratio == 1 and core is None:
            core = WHOLE_PERCENT
    gpus = amounts.get(_GPU, 1)
    return ContainerRequest(
        container.name, container.phase, container.order, gpus, core, size, ratio
    )


def _written(container: Container, name: str) -> object:
    """HAMi reads the limit; the API server requires the request to equal it."""
    return container.limits.get(name, container.requests.get(name))


def _allowed(name: str) -> str:
    if name == _PRIORITY:
        return "0 or 1"
    return f"1 to {_MAX[name]}" + (" MiB, a number without a unit" if name == _MEMORY else "")


def _invalid(container: Container, name: str, allowed: str) -> RequestError:
    value = _written(container, name)
    return RequestError(
        f"container {container.name}: {name}: invalid value {value}: must be {allowed}"
    )


def _policy(annotations: Mapping[str, str], key: str) -> Policy | None:
    """An empty one is none, as in HAMi."""
    return policy(annotations, key) if annotations.get(key) else None


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
    """Texts of which a matching model contains one: with HAMi's prefix or without."""
    return ("",) if name in _VENDOR else (name, name.removeprefix(_VENDOR))


def _listed(annotations: Mapping[str, str], key: str) -> Sequence[str]:
    """HAMi matches no GPU with an empty list, or every one."""
    listed = [each.strip() for each in annotations[key].split(",")]
    if len(listed) > _MAX_NAMES:
        raise RequestError(
            f"metadata.annotations[{key}]: invalid value of {len(listed)} names: must be at most"
            f" {_MAX_NAMES} names; use the node's annotation {names.ANNOTATION_EXCLUDED_GPUS}, or a"
            " nodeSelector"
        )
    if not any(listed):
        raise RequestError(
            f"metadata.annotations[{key}]: invalid value {annotations[key]!r}: must be names,"
            " separated by commas"
        )
    return [each for each in listed if each]
