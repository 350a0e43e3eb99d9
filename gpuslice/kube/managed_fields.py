"""Reads metadata.managedFields: which program wrote which field of an object. Pure.

Source: k8s.io/apimachinery FieldsV1. Anything that is not as the API server writes it has no owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from gpuslice.kube.fields import at


def writers(raw: Mapping[str, Any], *path: str) -> Mapping[str, AbstractSet[str]]:
    """The managers of each field below the path."""
    found: dict[str, set[str]] = {}
    entries = at(raw, "metadata").get("managedFields")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            fields = at(entry, "fieldsV1")
            for key in path:
                fields = at(fields, f"f:{key}")
            for key in fields:
                found.setdefault(key.removeprefix("f:"), set()).add(str(entry.get("manager", "")))
    return found
