"""Koordinator's `device-allocated` annotation: byte-exact writer, tolerant reader.

This module knows the format (a map from device type to entries) and makes no decisions. The
scheduler writes the annotation. The node agent and Koordinator's own koordlet read it.
Source: koordinator apis/extension/device_share.go. Go's encoding/json sorts map keys, keeps struct
order (minor, resources, id, extension) and writes no spaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.contract import names, quantity

_BINARY_SI: Final = frozenset({names.RESOURCE_MEMORY})
MAX_ANNOTATION_CHARS: Final = 256 * 1024
"""Kubernetes' limit for the total size of an object's annotations."""
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class AllocationError(ValueError):
    """The annotation is unreadable. The text names the field, its value and the allowed values."""


class UnreadableError(AllocationError):
    """The annotation is not a JSON object, so it names no device."""


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """One device of the allocation.

    resources: amounts in the resource's own unit (percent, bytes), under canonical names. id: the
    GPU's UUID (`GPU-...`). None if an older writer omitted it; `minor` then identifies the GPU.
    """

    minor: int
    resources: Mapping[str, int]
    id: str | None = None
    extension: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of an allocation, by device type. The key for GPUs is `gpu`."""

    devices: Mapping[str, Sequence[DeviceEntry]] = field(default_factory=dict)

    @property
    def gpus(self) -> Sequence[DeviceEntry]:
        return self.devices.get(names.DEVICE_TYPE_GPU, ())


def encode(allocation: Allocation) -> str:
    """Return the annotation's text, byte for byte as Koordinator's scheduler writes it."""
    document = {
        kind: [_encode_entry(entry) for entry in entries]
        for kind, entries in sorted(allocation.devices.items())
    }
    text = _ENCODE(document)
    # Go's encoder escapes these characters, which ids and extensions may contain, for HTML.
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _encode_entry(entry: DeviceEntry) -> dict[str, Any]:
    out: dict[str, Any] = {
        "minor": entry.minor,
        "resources": {
            name: quantity.format_binary(amount) if name in _BINARY_SI else _decimal(amount)
            for name, amount in sorted(entry.resources.items())
        },
    }
    if entry.id:
        out["id"] = entry.id
    if entry.extension:
        out["extension"] = dict(entry.extension)
    return out


def _decimal(amount: int) -> str:
    """Return Kubernetes' canonical DecimalSI form of a whole number, for example "1k"."""
    for power, suffix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if amount and amount % 10**power == 0:
            return f"{amount // 10**power}{suffix}"
    return str(amount)


def decode(text: str) -> Allocation:
    """Parse the annotation.

    Accepts any key order, null for an empty list, a missing `id`, bare numbers as quantities and
    the deprecated `kubernetes.io/gpu*` names. Ignores unknown keys, and devices of types other than
    GPU that do not parse. Raises AllocationError for anything else.
    """
    if len(text) > MAX_ANNOTATION_CHARS:
        raise AllocationError(
            f"too long: {len(text)} characters, must be <= {MAX_ANNOTATION_CHARS}"
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise UnreadableError(f"invalid type {kind}: must be an object by device type")
    devices: dict[str, Sequence[DeviceEntry]] = {}
    for kind, entries in document.items():
        try:
            devices[kind] = _decode_entries(kind, entries)
        except AllocationError:
            if kind == names.DEVICE_TYPE_GPU:
                raise
    return Allocation(devices)


def _decode_entries(kind: str, entries: object) -> Sequence[DeviceEntry]:
    if entries is None:  # Go writes a nil slice as null
        return ()
    if not isinstance(entries, list):
        raise AllocationError(f"{kind}: invalid type {type(entries).__name__}: must be a list")
    return tuple(_decode_entry(f"{kind}[{index}]", entry) for index, entry in enumerate(entries))


def _decode_entry(where: str, entry: object) -> DeviceEntry:
    if not isinstance(entry, dict):
        raise AllocationError(f"{where}: invalid type {type(entry).__name__}: must be an object")
    minor = entry.get("minor")
    if not isinstance(minor, int) or isinstance(minor, bool) or not 0 <= minor < 2**31:
        raise AllocationError(f"{where}.minor: invalid value {minor!r}: must be an integer >= 0")
    identity = entry.get("id")
    if identity is not None and not isinstance(identity, str):
        raise AllocationError(f"{where}.id: invalid value {identity!r}: must be a string")
    extension = entry.get("extension")
    if extension is not None and not isinstance(extension, dict):
        kind = type(extension).__name__
        raise AllocationError(f"{where}.extension: invalid type {kind}: must be an object")
    return DeviceEntry(minor, _decode_resources(where, entry), identity or None, extension or None)


def _decode_resources(where: str, entry: Mapping[str, object]) -> Mapping[str, int]:
    raw = entry.get("resources")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        raise AllocationError(f"{where}.resources: invalid type {kind}: must be an object")
    written: Mapping[str, object] = raw
    resources: dict[str, int] = {}
    for name, text in written.items():
        canonical = names.DEPRECATED_RESOURCES.get(name, name)
        if canonical in resources:
            raise AllocationError(f"{where}.resources: duplicate key {canonical}")
        match quantity.parse(text):
            case quantity.Value(amount):
                resources[canonical] = amount
            case quantity.Invalid(reason):
                raise AllocationError(f"{where}.resources.{name}: {reason}")
            case _:
                raise AllocationError(
                    f"{where}.resources.{name}: invalid value null: must be a quantity"
                )
    return resources
