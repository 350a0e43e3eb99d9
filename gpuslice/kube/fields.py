"""Reads fields of untrusted JSON objects. A field of an unexpected type counts as absent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

Json = Mapping[str, Any]

NOTHING: Final[Json] = {}


def at(raw: Json, key: str) -> Json:
    """Return the object at the key; an empty object if there is none."""
    value = raw.get(key)
    return value if isinstance(value, dict) else NOTHING


def objects(raw: Json, key: str) -> Sequence[Json]:
    """Return the objects in the list at the key."""
    values = raw.get(key)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def allocated(claim: Json, driver: str) -> Sequence[Json]:
    """Return what a ResourceClaim was allocated of this driver's devices."""
    results = objects(at(at(at(claim, "status"), "allocation"), "devices"), "results")
    return [each for each in results if each.get("driver") == driver]


def texts(raw: Json, key: str) -> Mapping[str, str]:
    """Return the strings in the object at the key."""
    return {name: text for name, text in at(raw, key).items() if isinstance(text, str)}


def writers(raw: Json, *path: str) -> Mapping[str, AbstractSet[str]]:
    """Return which managers wrote each field below the path, from metadata.managedFields. Source:
    k8s.io/apimachinery FieldsV1."""
    managers: dict[str, set[str]] = {}
    for entry in objects(at(raw, "metadata"), "managedFields"):
        fields = at(entry, "fieldsV1")
        for key in path:
            fields = at(fields, f"f:{key}")
        for key in fields:
            managers.setdefault(key.removeprefix("f:"), set()).add(str(entry.get("manager", "")))
    return managers
