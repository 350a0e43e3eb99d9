"""Memory limits of control groups on one GPU, as the driver has them from release 615 on.

Pure. A client counts for its own group's limit, or for that of the nearest ancestor that has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

UNLIMITED: Final = 2**64 - 1


class Limit(NamedTuple):
    soft_bytes: int = 0
    hard_bytes: int = UNLIMITED


@dataclass(slots=True)
class Limits:
    """The keys are directories of control groups."""

    of: dict[str, Limit] = field(default_factory=dict)

    def set(self, group: str, limit: Limit) -> None:
        self.of.pop(group, None)
        if limit != Limit():
            self.of[group] = limit

    def nearest(self, group: str) -> str:
        """Return the group itself or its nearest ancestor with a limit; "": there is none."""
        if not self.of:
            return ""
        while group and group not in self.of:
            group = group.rpartition("/")[0]
        return group
