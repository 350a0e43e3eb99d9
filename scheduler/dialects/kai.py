"""KAI's dialect: annotations of the pod request a share for one of its containers.

Refusals have the words and the order of KAI's own admission, so that users find them in KAI's
documents. Other values that gpuslice does not accept are refused in Kubernetes' form. A fraction is
read as an exact decimal, and the limit is fraction times memory, rounded down. KAI rounds both.
Source: KAI-Scheduler pkg/binder/plugins/gpusharing/gpu-request, pkg/binder/common/gpu_access.go,
and pkg/common/resources for the annotations by container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Final

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import (
    KAI,
    KAI_COMPUTE_MODE,
    KAI_CONTAINER,
    KAI_CONTAINER_PREFIX,
    KAI_CONTAINER_TYPE,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_INIT_CONTAINER,
    KAI_MEMORY,
    KAI_MEMORY_LIMIT,
    KAI_MEMORY_REQUEST,
    KAI_MPS,
    KAI_PORTION,
    KAI_PORTION_OLD,
    KAI_RECEIVED_TYPE,
    KAI_TIME_SLICING,
    LEAST_MIB,
    SCHEDULER_NAMES,
)
from scheduler.core.fleet import MAX_BYTES, Gpu
from scheduler.core.place import Placement
from scheduler.core.request import ContainerRequest, Phase
from scheduler.dialects.reading import (
    GPUS,
    MIB,
    MIB_BYTES,
    Bound,
    Container,
    Outputs,
    PodFields,
    Reading,
    RequestError,
    annotation,
    invalid,
)

_SUFFIXES: Final = (KAI_MEMORY_REQUEST, KAI_MEMORY_LIMIT)
_MIN_FRACTION: Final = "0.000001"
"""The smallest fraction. A smaller one could be less than a byte of a GPU."""
_WHOLE_NUMBER: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?0*[0-9]{1,2})?")
_D: Final = r"[0-9](_?[0-9])*"
_H: Final = r"[0-9a-f](_?[0-9a-f])*"
_FLOAT_OF_GO: Final = re.compile(
    rf"nan|[+-]?(({_D}([.]({_D})?)?|[.]{_D})(e[+-]?0*[0-9]{{1,2}})?"
    rf"|0x_?({_H}([.]({_H})?)?|[.]{_H})p[+-]?0*[0-9]{{1,2}})",
    re.IGNORECASE,
)
"""What Go's ParseFloat reads, except infinity. It includes NaN, hexadecimals and underscores."""
_MAX_CHARS: Final = 64
_OF_CONTAINER: Final = re.compile(
    rf"{re.escape(KAI_CONTAINER_PREFIX)}(.+)"
    rf"({re.escape(KAI_MEMORY_REQUEST)}|{re.escape(KAI_MEMORY_LIMIT)})"
)
_MODE: Final = re.compile(rf"{re.escape(KAI_CONTAINER_PREFIX)}.+{re.escape(KAI_COMPUTE_MODE)}")
_MODES: Final = f"{KAI_TIME_SLICING}, because gpuslice shares compute without MPS"

_MEMORY: Final = "gpu-memory annotation value must be a positive integer greater than 0"
_FRACTION: Final = "gpu-fraction annotation value must be a positive number smaller than 1.0"
_DEVICES: Final = "fraction count annotation value must be a positive integer greater than 0"


def read(pod: PodFields) -> Reading | None:
    """Read KAI's annotations. `nvidia.com/gpu` without them is no request of a share, because a
    device plugin allocates whole GPUs. Annotations that request nothing are refused, as by KAI, in
    pods with KAI's schedulerName only."""
    if pod.scheduler_name not in SCHEDULER_NAMES:
        return None
    written = pod.annotations
    of_containers = sorted(key for key in written if key.startswith(KAI_CONTAINER_PREFIX))
    by_container = [key for key in of_containers if not _MODE.fullmatch(key)]
    mps = written.get(KAI_MPS) == "true"
    keys = [key for key in (KAI_FRACTION, KAI_MEMORY) if key in written] + by_container
    is_request = any(key not in by_container or key.endswith(_SUFFIXES) for key in keys)
    if pod.scheduler_name != KAI.scheduler_name and not is_request:
        return None
    _refuse_combinations(pod, keys, by_container, mps)
    for key in of_containers:
        if key not in by_container and written[key] != KAI_TIME_SLICING:
            raise invalid(annotation(key), written[key], _MODES)
    if not keys:
        return None
    mib = _number(written, KAI_MEMORY, MIB, _MEMORY)
    memory = None if mib is None else mib * MIB_BYTES
    ratio = _fraction(written)
    gpus = _number(written, KAI_DEVICES, GPUS, _DEVICES) or 1
    if by_container:
        target, memory = _of_container(pod, by_container)
    else:
        target = _target(pod)
    requested = target.request(gpus, None, memory, ratio)
    notice = (
        f"{annotation(KAI_MPS)}: true has no effect: the library limits each container, and"
        " containers share a GPU without MPS"
    )
    notices = (notice,) if mps else ()
    return Reading((requested,), notices=notices, outputs=partial(_outputs, requested))


def _refuse_combinations(
    pod: PodFields, keys: Sequence[str], by_container: Sequence[str], mps: bool
) -> None:
    whole = any(names.RESOURCE_NVIDIA_GPU in container.limits for container in pod.containers)
    fraction, memory = KAI_FRACTION in keys, KAI_MEMORY in keys
    for refused, text in (
        (mps and not keys, "MPS is only supported with GPU fraction request"),
        (
            whole and (fraction or by_container),
            "cannot have both GPU fraction request and whole GPU resource request/limit",
        ),
        (memory and (fraction or whole), "cannot request both GPU and GPU memory"),
        (
            by_container and (fraction or memory),
            f"cannot combine {KAI_CONTAINER_PREFIX} limit annotation with {KAI_FRACTION} or"
            f" {KAI_MEMORY} annotation",
        ),
        (
            KAI_DEVICES in pod.annotations and not keys,
            "cannot request multiple fractional devices without specifying fraction portion or"
            " gpu-memory",
        ),
    ):
        if refused:
            raise RequestError(text)


# --- amounts -------------------------------------------------------------------------------------


def _number(written: Mapping[str, str], key: str, bound: Bound, refusal: str) -> int | None:
    """Return the positive number in the annotation. refusal: KAI's text if it is not one."""
    text = written.get(key)
    if text is None:
        return None
    digits = text.lstrip("0")
    if not _WHOLE_NUMBER.fullmatch(text) or not digits:
        raise RequestError(refusal)
    if len(digits) > len(str(bound.most)) or not bound.least <= int(digits) <= bound.most:
        raise invalid(annotation(key), text, bound.allowed)
    return int(digits)


def _fraction(written: Mapping[str, str]) -> Fraction | None:
    """Return the exact fraction. Only its range is checked as a float, as in KAI."""
    text = written.get(KAI_FRACTION)
    if text is None:
        return None
    if len(text) > _MAX_CHARS or not _FLOAT_OF_GO.fullmatch(text):
        raise RequestError(_FRACTION)
    plain = text.replace("_", "")
    amount = float.fromhex(plain) if "x" in plain.lower() else float(plain)
    if amount <= 0 or amount >= 1:
        raise RequestError(_FRACTION)
    if not _DECIMAL.fullmatch(text):
        raise RequestError(
            "gpu-fraction annotation value must be a float written with a decimal point or a"
            f" scientific notation .given value: {text}"
        )
    if amount < float(_MIN_FRACTION):
        raise invalid(annotation(KAI_FRACTION), text, f"at least {_MIN_FRACTION}")
    return Fraction(text)


# --- the container -------------------------------------------------------------------------------


def _target(pod: PodFields) -> Container:
    """Return the container that gets the share, and look at init containers first, as in KAI.
    Before KAI 0.10, an annotation beside the name told whether it is an init container."""
    name = pod.annotations.get(KAI_CONTAINER)
    candidates = pod.containers
    if pod.annotations.get(KAI_CONTAINER_TYPE) == KAI_INIT_CONTAINER:
        candidates = [each for each in candidates if each.phase is not Phase.MAIN]
        if not candidates:
            must_be = "absent in a pod without init containers"
            raise invalid(annotation(KAI_CONTAINER_TYPE), KAI_INIT_CONTAINER, must_be)
    elif name is None:
        candidates = [each for each in candidates if each.phase is Phase.MAIN]
    for each in candidates:
        if name is None or each.name == name:
            return each
    raise RequestError(f"container with name {name} not found for fraction request")


def _of_container(pod: PodFields, keys: Sequence[str]) -> tuple[Container, int]:
    """Return the container that these annotations name, and the bytes of each GPU for it."""
    bytes_of: dict[str, int] = {}
    containers = set()
    for key in keys:
        match = _OF_CONTAINER.fullmatch(key)
        if match is None:
            raise RequestError(f"invalid NvFractions annotation key: {key}")
        containers.add(match[1])
        bytes_of[match[2]] = _bytes(key, pod.annotations[key])
    if len(containers) > 1:
        raise RequestError(
            "currently, kai doesn't support multiple containers with fractional GPU requests"
        )
    (name,) = containers
    target = next((each for each in pod.containers if each.name == name), None)
    if target is None:
        raise RequestError(
            f"container {name} not found in pod spec, but a fractional annotation referencing it"
            " was found"
        )
    other = pod.annotations.get(KAI_CONTAINER, name)
    if other != name:
        raise RequestError(
            f"{KAI_CONTAINER} annotation value {other} does not match container name {name}"
        )
    request, limit = bytes_of.get(KAI_MEMORY_REQUEST), bytes_of.get(KAI_MEMORY_LIMIT)
    if request is not None and limit is not None:
        if request > limit:
            raise RequestError(
                f"invalid fraction request for container {name}: request is greater than limit"
            )
        if request < limit:
            key = f"{KAI_CONTAINER_PREFIX}{name}{KAI_MEMORY_LIMIT}"
            must_be = "equal to the request, or without one"
            raise invalid(annotation(key), pod.annotations[key], must_be)
    return target, max(bytes_of.values())


def _bytes(key: str, text: str) -> int:
    read = quantity.parse(text)
    if not isinstance(read, quantity.Value) or not read.amount:
        raise RequestError(
            f"{key} annotation value must be a valid Kubernetes memory quantity greater than 0"
        )
    if not LEAST_MIB * MIB_BYTES <= read.amount <= MAX_BYTES:
        raise invalid(annotation(key), text, f"{LEAST_MIB}Mi to 256Ti")
    return read.amount


# --- what KAI's users read -----------------------------------------------------------------------


def _outputs(
    requested: ContainerRequest, placement: Placement, gpus: Sequence[Gpu], now_ns: int
) -> Outputs:
    """Return KAI's own annotation and variables. The portion is the container's part of one GPU:
    of the GPU with the lowest minor, if it has several."""
    ratio = requested.memory_ratio
    if ratio is None:
        share = placement.shares[0]
        (total,) = (gpu.total_bytes for gpu in gpus if gpu.uuid == share.uuid)
        ratio = Fraction(share.memory_bytes, total)
    portion = f"{float(ratio):.2f}"
    return Outputs(
        annotations={KAI_RECEIVED_TYPE: "Fraction"},
        environment={requested.name: {KAI_PORTION: portion, KAI_PORTION_OLD: portion}},
    )
