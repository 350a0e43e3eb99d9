"""The container runtimes that carry NRI: which release has which NRI, and which we refuse.

Pure: a table and what follows from it; dialect.py, session.py, node.py and the doctor ask it
about a runtime, docs/runtimes.md shows it to people. A new release changes this file or none.
Source: the releases' go.mod, and pkg/api/version.go of github.com/containerd/nri.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nri_plugin.protocol.events import RuntimeInfo

Version = tuple[int, int, int]

CHUNKS: Final[Version] = (0, 7, 0)
"""A Synchronize larger than one message comes in pieces; the runtime tells its deadlines."""
VALIDATION: Final[Version] = (0, 10, 0)
"""Plugins may validate, NRI has a default validator, pods can require plugins."""
METHODS: Final[Version] = (0, 12, 0)
"""A method per event instead of StateChange; the runtime tells its version of NRI."""
FAILURE_POLICY: Final[Version] = (0, 12, 4)
"""A plugin may ask that requests fail which it does not answer."""


@dataclass(frozen=True, slots=True)
class Release:
    """Releases of one runtime from `since` on, until the next line. refused: why, or None."""

    runtime: str
    """As Configure names it, in lower case."""
    since: Version
    nri: Version
    carries_cdi: bool = True
    """Whether CDI devices that a plugin names come into the container."""
    refused: str | None = None

    @property
    def why_refused(self) -> str:
        return (self.refused or "").format(nri=text(self.nri))


_DEAF: Final = (
    "its NRI ({nri}) leaves a plugin connected, and asks it nothing, after one Synchronize that"
    " took too long, and cannot split a large one; "
)
_NO_PLUGINS: Final = "its NRI ({nri}) lets no plugin connect; "
_TO_1_7_26: Final = "use containerd 1.7.26 or newer"

RELEASES: Final[Sequence[Release]] = (
    Release("containerd", (1, 6, 0), (0, 1, 0), False, _NO_PLUGINS + _TO_1_7_26),
    Release("containerd", (1, 7, 0), (0, 3, 0), False, _DEAF + _TO_1_7_26),
    Release("containerd", (1, 7, 7), (0, 4, 0), False, _DEAF + _TO_1_7_26),
    Release("containerd", (1, 7, 14), (0, 6, 0), False, _DEAF + _TO_1_7_26),
    Release("containerd", (1, 7, 16), (0, 6, 1), False, _DEAF + _TO_1_7_26),
    Release("containerd", (1, 7, 26), (0, 8, 0), False),
    Release("containerd", (1, 7, 30), (0, 8, 0)),
    Release("containerd", (2, 0, 0), (0, 8, 0), False),
    Release("containerd", (2, 1, 0), (0, 8, 0)),
    Release("containerd", (2, 2, 0), (0, 10, 0)),
    Release("containerd", (2, 2, 1), (0, 11, 0)),
    Release("containerd", (2, 3, 0), (0, 12, 0)),
    Release("containerd", (2, 4, 0), (0, 12, 3)),
)
"""In ascending order. A runtime that tells its NRI (0.12 and later) is believed, whatever stands
here."""

SERVED: Final = "containerd"
"""The agent reads its bundles: with any other runtime it would refuse every start with a share."""


def nri_of(runtime: RuntimeInfo) -> Version | None:
    """The NRI that it speaks, as it tells or as its version says; None where neither is known."""
    told = parse(runtime.nri_version)
    if told is not None:
        return told
    release = find(runtime.name, runtime.version)
    return None if release is None else release.nri


def refusal(runtime: RuntimeInfo) -> str | None:
    """Why this runtime is not served, for people; None: it is.

    Every release of containerd that is not known to lack something is.
    """
    if runtime.name.lower() != SERVED:
        return (
            f"{runtime.name or 'a runtime without a name'} {runtime.version} is not served: the"
            f" container runtime must be {SERVED} ({_TO_1_7_26.removeprefix('use containerd ')})"
        )
    release = None if parse(runtime.nri_version) else find(runtime.name, runtime.version)
    if release is None or release.refused is None:
        return None
    return f"{runtime.name} {runtime.version} is not served: {release.why_refused}"


def find(name: str, version: str) -> Release | None:
    """The line of the table; a release newer than all lines has the last one's NRI at least."""
    parsed = parse(version)
    lines = [line for line in RELEASES if line.runtime == name.lower()]
    if parsed is None:
        return None
    return next((line for line in reversed(lines) if line.since <= parsed), None)


def parse(version: str) -> Version | None:
    """`v1.7.24~ds1` is (1, 7, 24); a missing patch is 0."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)(?:\.(\d{1,9})(?!\d))?", version, re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def text(version: Version) -> str:
    return ".".join(map(str, version))
