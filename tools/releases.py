"""The containerd releases that the lab runs: their modules, and their differences.

Tables alone. programs.py builds them, containerd.py writes their configuration and runs them, the
fault matrix has a column for each. Only DEFAULT is built by `make setup`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_V1: Final = "github.com/containerd/containerd"
_V2: Final = "github.com/containerd/containerd/v2"
NRI_MODULE: Final = "github.com/containerd/nri"


@dataclass(frozen=True, slots=True)
class Release:
    """One containerd. `nri` is the version that is compiled into it."""

    name: str
    """Its name in `make faults`."""
    version: str
    module: str
    nri: str
    own_nri: bool = True
    """Whether `nri` is the version that this containerd was released with."""
    config_version: int = 3
    has_validator: bool = True
    """NRI's default validator, and plugins that validate: since NRI 0.10."""
    has_socket_dir: bool = True
    """Whether the shims' sockets can be configured away from /run/containerd."""
    at: Path | None = None
    """The directory of its programs, if they are not the lab's own."""

    @property
    def directory(self) -> str:
        """Its directory in the cache."""
        return f"containerd-{self.version}" + ("" if self.own_nri else f"-nri-{self.nri}")

    @property
    def title(self) -> str:
        return f"containerd {self.version} ({f'NRI {self.nri}' if self.at is None else self.at})"


_ALL: Final = (
    Release(
        "1.7", "1.7.35", _V1, "0.8.0", config_version=2, has_validator=False, has_socket_dir=False
    ),
    Release("2.2", "2.2.9", _V2, "0.11.0", has_socket_dir=False),
    Release("2.3", "2.3.7", _V2, "0.12.0"),
    Release("2.4", "2.4.2", _V2, "0.12.3"),
    Release("2.4-nri", "2.4.2", _V2, "0.12.5", own_nri=False),
)
RELEASES: Final[Mapping[str, Release]] = {release.name: release for release in _ALL}
DEFAULT: Final = RELEASES["2.4"]


def of_machine(directory: Path, version: str) -> Release:
    """The containerd whose programs are in `directory`, by its version string: `v2.2.1+ds1`.

    Raises ValueError for an unknown one.
    """
    match = re.match(r"v?(\d+)\.(\d+)\.", version)
    if match is None:
        raise ValueError(f"{version!r} is not a version of containerd")
    line = (int(match[1]), int(match[2]))
    return Release(
        "own",
        version.removeprefix("v"),
        "",
        "",
        config_version=2 if line < (2, 0) else 3,
        has_validator=line >= (2, 2),
        has_socket_dir=line >= (2, 3),
        at=directory,
    )
