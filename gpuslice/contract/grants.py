"""The `gpuslice.io/grants` annotation: memory and compute of each GPU, per container.

    {"v":1,"containers":{"NAME":[{"id":"GPU-...","minor":0,"memory":BYTES,"core":PERCENT}]}}

Two keys are optional, for some request dialects. "env":{"NAME":{VARIABLE:VALUE}} sets variables of
containers with a share. "visible":"index" makes NVIDIA_VISIBLE_DEVICES list minors, not UUIDs.

Invariant: containers that run at the same time never get more of a GPU together than the pod's
allocation. A container that is not listed gets no GPU. A pod that Koordinator's scheduler bound has
no such annotation: its containers share one grant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice.contract import names

VERSION: Final = 1
_MAX_BYTES: Final = 2**63 - 1
_TOP_KEYS: Final = frozenset({"v", "containers", "env", "visible"})
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_GPU_KEYS: Final = frozenset({"id", "minor", "memory", "core"})
_INDEX: Final = "index"
_MAX_VARIABLES: Final = 16
_MAX_VALUE: Final = 1024
"""Maximum length of a variable's value, in characters."""
_VARIABLE: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")


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
"""Each container's GPUs, in any order: inside the container the driver numbers GPUs by minor."""

Environment = Mapping[str, Mapping[str, str]]
"""Environment variables (name to value) by container name."""


@dataclass(frozen=True, slots=True)
class Document:
    """The whole annotation. by_index: NVIDIA_VISIBLE_DEVICES lists minors instead of UUIDs, unless
    NVIDIA's runtime reads the variable."""

    containers: Grants
    environment: Environment = field(default_factory=dict)
    by_index: bool = False


def encode(grants: Grants, environment: Environment | None = None, visible: str = "uuid") -> str:
    """Return the annotation's text, with sorted keys and no spaces. Equal grants give equal bytes.
    visible: "index" or "uuid". The default "uuid" is not written."""
    containers = {
        name: [
            {"id": gpu.id, "minor": gpu.minor, "memory": gpu.memory_bytes, "core": gpu.core_percent}
            for gpu in gpus
        ]
        for name, gpus in sorted(grants.items())
    }
    variables = {
        name: dict(sorted(each.items())) for name, each in sorted((environment or {}).items())
    }
    return _ENCODE(
        {
            "v": VERSION,
            "containers": containers,
            **({"env": variables} if variables else {}),
            **({"visible": visible} if visible == _INDEX else {}),
        }
    )


def decode(text: str) -> Grants:
    """Return the containers' GPUs. Raises GrantsError."""
    return parse(text).containers


def parse(text: str) -> Document:
    """Parse the annotation. Only our scheduler writes it, so anything unexpected raises
    GrantsError."""
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
    visible = document.get("visible", _INDEX)
    if visible != _INDEX:
        raise GrantsError(f"visible: invalid value {visible!r}: must be {_INDEX}, or absent")
    decoded = {name: _decode_gpus(name, gpus) for name, gpus in containers.items()}
    environment = _decode_environment(document.get("env", {}), decoded)
    return Document(decoded, environment, "visible" in document)


def _decode_environment(environment: object, containers: Grants) -> Environment:
    if not isinstance(environment, dict):
        raise GrantsError("env: must be an object by container name")
    for name, variables in environment.items():
        if name not in containers:
            raise GrantsError(f"env.{name}: invalid container: must have a share")
        if not isinstance(variables, dict) or not 1 <= len(variables) <= _MAX_VARIABLES:
            raise GrantsError(f"env.{name}: must be an object of 1 to {_MAX_VARIABLES} variables")
        for variable, value in variables.items():
            if not _VARIABLE.fullmatch(variable):
                pattern = _VARIABLE.pattern
                raise GrantsError(f"env.{name}: invalid name {variable!r}: must match {pattern}")
            if not isinstance(value, str) or len(value) > _MAX_VALUE or not value.isprintable():
                raise GrantsError(
                    f"env.{name}.{variable}: invalid value {value!r}: must be printable text of at"
                    f" most {_MAX_VALUE} characters"
                )
    return environment


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject duplicate keys. JSON permits them, but readers differ in which value they use."""
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
