"""Fields of JSON objects from outside. One of another type counts as absent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

Json = Mapping[str, Any]

NOTHING: Final[Json] = {}


def at(raw: Json, key: str) -> Json:
    """The object at the key; empty if there is none."""
    value = raw.get(key)
    return value if isinstance(value, dict) else NOTHING


def objects(raw: Json, key: str) -> Sequence[Json]:
    """The objects in the list at the key."""
    values = raw.get(key)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def texts(raw: Json, key: str) -> Mapping[str, str]:
    """The strings in the object at the key."""
    return {name: text for name, text in at(raw, key).items() if isinstance(text, str)}


def writers(raw: Json, *path: str) -> Mapping[str, AbstractSet[str]]:
    """The managers of each field below the path, by metadata.managedFields. Source:
    k8s.io/apimachinery FieldsV1."""
    managers: dict[str, set[str]] = {}
    for entry in objects(at(raw, "metadata"), "managedFields"):
        fields = at(entry, "fieldsV1")
        for key in path:
            fields = at(fields, f"f:{key}")
        for key in fields:
            managers.setdefault(key.removeprefix("f:"), set()).add(str(entry.get("manager", "")))
    return managers
