"""Writes tables as TOML, and merges one table over another. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key. `above` determines a key's value, unless both values are tables."""
    result = dict(below)
    for key, value in above.items():
        beside = result.get(key)
        if isinstance(value, Mapping) and isinstance(beside, Mapping):
            value = merged(beside, value)
        result[key] = value
    return result


def text(table: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _lines(table, ()))


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (len(inner) < len(table) or not table):
        yield f"[{'.'.join(json.dumps(each) for each in path)}]"
    for key, value in table.items():
        if key not in inner:
            # JSON writes numbers, booleans, strings, and lists of these, as TOML does.
            yield f"{json.dumps(key)} = {json.dumps(value)}"
    for key, value in inner.items():
        yield from _lines(value, (*path, key))
