"""The `gpuslice.io/grants` annotation: memory and compute of each GPU, per container.

    {"v":1,"containers":{"NAME":[{"id":"GPU-...","minor":0,"memory":BYTES,"core":PERCENT}]}}

Invariant: no container, and no set of containers that run at the same time, has more of a GPU than
the pod's allocation. An init container ends before the main containers start, so each may have all
of it. A container that is not listed gets no GPU.
Our scheduler writes it in the same write as the allocation. Without it (pods that Koordinator's
scheduler bound) the pod's containers share one grant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from contract import names

VERSION: Final = 1
_MAX_BYTES: Final = 2**63 - 1
_TOP_KEYS: Final = frozenset({"v", "containers"})
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_GPU_KEYS: Final = frozenset({"id", "minor", "memory", "core"})


class GrantsError(ValueError):
    """The annotation is unreadable. The text names the field, its value and the allowed values."""


@dataclass(frozen=True, slots=True)
class GpuGrant:
    """A container's share of one physical GPU, in whole bytes and whole percent."""

    id: str
    minor: int
    memory_bytes: int
    core_percent: int


Grants = Mapping[str, Sequence[GpuGrant]]
"""Container name to its GPUs. In the container the driver numbers them by minor, in any order."""


def encode(grants: Grants) -> str:
    """Return the annotation's text: keys sorted, no spaces; equal grants give equal bytes."""
    containers = {
        name: [
            {
                "id": gpu.id,
                "minor": gpu.minor,
                "memory": gpu.memory_bytes,
                "core": gpu.core_percent,
            }
            for gpu in gpus
        ]
        for name, gpus in sorted(grants.items())
    }
    return _ENCODE({"v": VERSION, "containers": containers})


def decode(text: str) -> Grants:
    """Parse the annotation strictly: only our scheduler writes it, so anything unexpected fails.

    Raises GrantsError.
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise GrantsError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise GrantsError(f"invalid type {type(document).__name__}: must be an object")
    if type(document.get("v")) is not int or document["v"] != VERSION:
        raise GrantsError(f"v: invalid value {document.get('v')!r}: must be {VERSION}")
    _check_keys("the annotation", document, _TOP_KEYS)
    containers = document.get("containers")
    if not isinstance(containers, dict):
        raise GrantsError("containers: must be an object by container name")
    return {name: _decode_gpus(name, gpus) for name, gpus in containers.items()}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject duplicate keys: JSON permits them, and readers differ in which one they use."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError(f"duplicate key in {', '.join(key for key, _ in pairs)}")
    return document


def _check_keys(where: str, document: Mapping[str, object], allowed: frozenset[str]) -> None:
    unknown = sorted(document.keys() - allowed)
    if unknown:
        known = ", ".join(sorted(allowed))
        raise GrantsError(f"{where}: unknown key {', '.join(unknown)}: must be one of {known}")


def _decode_gpus(name: str, gpus: object) -> Sequence[GpuGrant]:
    where = f"containers.{name}"
    if not isinstance(gpus, list) or not 1 <= len(gpus) <= names.MAX_GPUS:
        raise GrantsError(f"{where}: must be a list of 1 to {names.MAX_GPUS} GPUs")
    decoded = tuple(_decode_gpu(f"{where}[{i}]", gpu) for i, gpu in enumerate(gpus))
    if len({gpu.id for gpu in decoded}) != len(decoded):
        raise GrantsError(f"{where}: duplicate GPU: must be listed once")
    return decoded


def _decode_gpu(where: str, gpu: object) -> GpuGrant:
    if not isinstance(gpu, dict):
        raise GrantsError(f"{where}: invalid type {type(gpu).__name__}: must be an object")
    _check_keys(where, gpu, _GPU_KEYS)
    identity = gpu.get("id")
    if not isinstance(identity, str) or not identity:
        raise GrantsError(f"{where}.id: invalid value {identity!r}: must be a GPU's UUID")
    return GpuGrant(
        identity,
        _whole(where, gpu, "minor", 0, 2**31 - 1),
        _whole(where, gpu, "memory", 1, _MAX_BYTES),
        _whole(where, gpu, "core", 0, 100),
    )


def _whole(where: str, gpu: Mapping[str, object], key: str, low: int, high: int) -> int:
    value = gpu.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise GrantsError(f"{where}.{key}: invalid value {value!r}: must be {low} to {high}")
    return value
