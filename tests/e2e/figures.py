"""What an endurance run counts, and how it fails."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field


class EndureError(AssertionError):
    """A limit was not right, or a pod that fits did not run."""


@dataclass
class Figures:
    """What a crowd went through. waits_s: by what was killed last (""; nothing), how long each pod
    that fitted waited until all its containers ran. silence_s: the longest between two looks of one
    container. short: looks at which the card had less than the limit (tenants.is_short).
    of_containerd: how much of what a killed containerd has left of its own."""

    made: int = 0
    ran: int = 0
    deleted: int = 0
    most_at_once: int = 0
    looks_inside: int = 0
    looks_at_books: int = 0
    restarts: int = 0
    silence_s: float = 0.0
    short: int = 0
    of_containerd: Counter[str] = field(default_factory=Counter)
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    kills: Counter[str] = field(default_factory=Counter)
