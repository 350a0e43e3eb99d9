"""The NRI version of each containerd release, and the releases that the agent refuses to serve.

Pure. docs/platforms.md documents the table. A new release needs a change of this file at most.
Source: the releases' go.mod, and pkg/api/version.go of github.com/containerd/nri.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nri_plugin.protocol.session_events import RuntimeInfo

Version = tuple[int, int, int]

VALIDATION: Final[Version] = (0, 10, 0)
"""The first NRI version in which plugins can validate adjustments, and pods can require plugins."""


@dataclass(frozen=True, slots=True)
class Release:
    """The containerd releases from `since` up to the next row of RELEASES. refused: why the agent
    refuses them. None: it serves them."""

    since: Version
    nri: Version
    refused: str | None = None

    @property
    def why_refused(self) -> str:
        return (self.refused or "").format(nri=text(self.nri))


_SENDS_NOTHING: Final = (
    "its NRI ({nri}) leaves a plugin connected, and sends it nothing, after one Synchronize that"
    " took too long, and cannot split a large one; "
)
_NO_PLUGINS: Final = "its NRI ({nri}) lets no plugin connect; "
_TO_1_7_26: Final = "use containerd 1.7.26 or newer"

RELEASES: Final[Sequence[Release]] = (
    Release((1, 6, 0), (0, 1, 0), _NO_PLUGINS + _TO_1_7_26),
    Release((1, 7, 0), (0, 3, 0), _SENDS_NOTHING + _TO_1_7_26),
    Release((1, 7, 7), (0, 4, 0), _SENDS_NOTHING + _TO_1_7_26),
    Release((1, 7, 14), (0, 6, 0), _SENDS_NOTHING + _TO_1_7_26),
    Release((1, 7, 16), (0, 6, 1), _SENDS_NOTHING + _TO_1_7_26),
    Release((1, 7, 26), (0, 8, 0)),
    Release((2, 0, 0), (0, 8, 0)),
    Release((2, 2, 0), (0, 10, 0)),
    Release((2, 2, 1), (0, 11, 0)),
    Release((2, 3, 0), (0, 12, 0)),
    Release((2, 4, 0), (0, 12, 3)),
)
"""The releases in ascending order. A runtime with NRI 0.12 or later reports its NRI version, which
takes precedence over this table."""

SERVED: Final = "containerd"
"""The only runtime that the agent serves, because the agent reads containerd's bundles."""


def nri_of(runtime: RuntimeInfo) -> Version | None:
    """Return the NRI version that the runtime reports, or else the version of its release. None:
    the release is not known."""
    reported = parse(runtime.nri_version)
    if reported is not None:
        return reported
    release = find(runtime.version)
    return None if release is None else release.nri


def refusal(runtime: RuntimeInfo) -> str | None:
    """Return why the agent does not serve this runtime. None: it serves the runtime. A containerd
    release that the table does not have is served."""
    if runtime.name.lower() != SERVED:
        return (
            f"{runtime.name or 'a runtime without a name'} {runtime.version} is not served: the"
            f" container runtime must be {SERVED} ({_TO_1_7_26.removeprefix('use containerd ')})"
        )
    release = None if parse(runtime.nri_version) else find(runtime.version)
    if release is None or release.refused is None:
        return None
    return f"{runtime.name} {runtime.version} is not served: {release.why_refused}"


def find(version: str) -> Release | None:
    """Return the table's row for a version of containerd. Newer releases get the last row."""
    parsed = parse(version)
    rows = reversed(RELEASES) if parsed else ()
    return next((row for row in rows if parsed and row.since <= parsed), None)


def parse(version: str) -> Version | None:
    """Parse `v1.7.24~ds1` as (1, 7, 24); a missing patch is 0."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)(?:\.(\d{1,9})(?!\d))?", version, re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def text(version: Version) -> str:
    return ".".join(map(str, version))
