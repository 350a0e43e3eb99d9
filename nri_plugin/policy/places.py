"""Paths in containers and on hosts: which mount lies over, under or inside another one. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from functools import lru_cache

from nri_plugin.policy.model import Mount


class Destinations:
    """Our mount destinations, for comparison with many mounts."""

    def __init__(self, destinations: Iterable[str]) -> None:
        self._destinations = tuple(destinations)
        above = (each for place in self._destinations for each in with_parents(place))
        self._above = frozenset(above)
        self._below = tuple(map(_prefix, self._destinations))

    def hidden_by(self, mount: Mount) -> str | None:
        """Return the first destination of ours that `mount` would be over, under or inside."""
        there = normal(mount.destination)
        if there not in self._above and not there.startswith(self._below):
            return None
        prefix = _prefix(there)
        for place, below in zip(self._destinations, self._below, strict=True):
            if there == place or place.startswith(prefix) or there.startswith(below):
                return place
        return None


@lru_cache(maxsize=256)
def with_parents(place: str) -> Sequence[str]:
    """Return the path and all directories above it."""
    parent = posixpath.dirname(place)
    return (place,) if parent == place else (place, *with_parents(parent))


def normal(destination: str) -> str:
    if (
        destination.startswith("/")
        and "//" not in destination
        and "/." not in destination
        and not destination.endswith("/")
    ):
        return destination
    return "/" + posixpath.normpath("/" + destination).lstrip("/")


def is_below(path: str, directory: str) -> bool:
    return path.startswith(_prefix(directory))


@lru_cache(maxsize=256)
def _prefix(directory: str) -> str:
    return directory.rstrip("/") + "/"
