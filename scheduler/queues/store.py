"""Stores of what watches report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpuslice.kube.fields import Json, at

T = TypeVar("T")


def key_of(raw: Json) -> str:
    """Return NAMESPACE/NAME of an object, /NAME without a namespace."""
    metadata = at(raw, "metadata")
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


class Store(dict[str, T]):
    """A reflector's sink: what `read` returns of each object, by key; nothing for None."""

    def __init__(self, read: Callable[[Json], T | None]) -> None:
        super().__init__()
        self._read = read

    def observed(self, raw: Json) -> str:
        key, read = key_of(raw), self._read(raw)
        if read is None:
            self.deleted(raw)
        else:
            self[key] = read
        return key

    def deleted(self, raw: Json) -> None:
        self.pop(key_of(raw), None)

    def listed(self, keys: set[str]) -> None:
        for key in self.keys() - keys:
            del self[key]
