"""What was chosen for a pod: which cards, how much of each, for whom. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of one card; core_percent None: none was asked for."""

    container: str
    uuid: str
    minor: int
    memory_bytes: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a pod has of one card in any moment of its life, which it holds all along.

    memory_percent: what was asked for in percent, and the floor of what was asked for in bytes;
    at most 100. core_percent None: none of its shares of this card asks for core.
    """

    uuid: str
    minor: int
    memory_bytes: int
    memory_percent: int
    core_percent: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """shares: in the order of the request's asks, each by minor. peaks: by minor."""

    node: str
    shares: Sequence[Share]
    peaks: Sequence[Peak]
