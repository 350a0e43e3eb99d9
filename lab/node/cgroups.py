"""The control groups of a lab: its containers' groups are below groups of one name."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_POLL_S: Final = 0.05


def named(name: str) -> list[Path]:
    """Groups of that name, in every hierarchy."""
    tops = [ROOT, *(path for path in ROOT.iterdir() if path.is_dir())]
    # Under cgroup v1 runc makes them below its own group, where the hierarchy gives it one.
    own = {line.split(":", 2)[2].lstrip("/") for line in _OWN.read_text().splitlines()}
    found = {top / inner / name for top in tops for inner in own | {""}}
    return [group for group in found if group.is_dir()]


def remove(name: str, within_s: float = 0.0) -> bool:
    """Remove the empty groups of that name; False if one still has a process after `within_s`.

    The kernel may count a killed process for some milliseconds after its exit.
    """
    deadline_s = time.monotonic() + within_s
    while groups := named(name):
        for group in groups:
            inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
            for path in [*inner, group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() >= deadline_s:
            return not named(name)
        time.sleep(_POLL_S)
    return True
