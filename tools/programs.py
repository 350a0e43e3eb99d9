"""Finds and builds the containerd releases that the lab runs, and the Go programs of this tree.

A release is taken from the cache, else built (building.py). The default release is first searched
in the directory that $GPUSLICE_BIN names. lab/node/containerd.py writes the configuration of a
release. The fault matrix has a column for each release, but `make setup` builds only DEFAULT. Only
the standard library is used, for setup.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.building import ProgramsError, build, cache_dir, print_paths, runs

_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
_TAGS: Final = "no_btrfs,no_devmapper,no_zfs"
_FREE_BYTES_WANTED: Final = 3 << 30
"""The disk space for a build: modules, Go's build cache and programs take 1.3 GB (measured)."""
_V1: Final = "github.com/containerd/containerd"
_V2: Final = "github.com/containerd/containerd/v2"
NRI_MODULE: Final = "github.com/containerd/nri"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of containerd. nri: the version of NRI that is compiled into it."""

    name: str
    """The release's name in `make faults`."""
    version: str
    module: str
    nri: str
    own_nri: bool = True
    """Whether `nri` is the version that this containerd was released with."""
    config_version: int = 3
    has_validator: bool = True
    """Whether NRI has its default validator, and plugins that validate, as since NRI 0.10."""
    has_socket_dir: bool = True
    """Whether the directory of the shims' sockets, /run/containerd, can be configured."""
    at: Path | None = None
    """The directory of the programs, if they are the machine's and not the lab's."""

    @property
    def directory(self) -> str:
        """The name of the release's directory in the cache."""
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


@dataclass(frozen=True, slots=True)
class Programs:
    """A directory that holds containerd, its shim and ctr."""

    directory: Path

    def __getitem__(self, name: str) -> Path:
        return self.directory / name


def find(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs | None:
    """Return the programs that this machine has, or None. Build nothing.

    Raise ProgramsError if $GPUSLICE_BIN names a directory without them.
    """
    if release.at is not None:
        return _there(release.at, f"{release.at}")
    if release is DEFAULT and (chosen := environ.get("GPUSLICE_BIN")):
        return _there(Path(chosen), f"GPUSLICE_BIN={chosen}")
    cached = cache_dir(environ) / "bin" / release.directory
    return Programs(cached) if all(runs(cached / name) for name in _PROGRAMS) else None


def _there(directory: Path, named: str) -> Programs:
    missing = [name for name in _PROGRAMS if not runs(directory / name)]
    if missing:
        raise ProgramsError(
            f"{named}: no {', '.join(missing)} there; without it they are built into the cache"
        )
    return Programs(directory)


def of_machine(directory: Path) -> Release:
    """Return the release of the containerd in `directory`. Raise ProgramsError."""
    programs = _there(directory, str(directory))
    done = subprocess.run([programs["containerd"], "--version"], text=True, capture_output=True)
    match = re.search(r" v?((\d+)\.(\d+)\.\S+)", done.stdout)
    if match is None:
        raise ProgramsError(f"{programs['containerd']} --version: no version in the output")
    line = (int(match[2]), int(match[3]))
    return Release(
        *("own", match[1], "", ""),
        config_version=2 if line < (2, 0) else 3,
        has_validator=line >= (2, 2),
        has_socket_dir=line >= (2, 3),
        at=directory,
    )


def ensure(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs:
    """Return the programs, and build them if this machine has none. Raise ProgramsError."""
    if found := find(environ, release):
        return found
    final = cache_dir(environ) / "bin" / release.directory
    tools = [f"{release.module}/cmd/{name}" for name in _PROGRAMS]
    version = f"-s -w -X {release.module}/version.Version=v{release.version}"
    title = f"building {release.title} with Go, once"
    with build(final, title, _FREE_BYTES_WANTED, environ) as under_way:
        under_way.go("mod", "init", "gpuslice.io/lab")
        under_way.go("get", *(f"{tool}@v{release.version}" for tool in tools))
        if not release.own_nri:
            under_way.go("get", f"{NRI_MODULE}@v{release.nri}")
        # One `go install` of all three compiles the packages that they share once.
        options = ("-v", "-mod=mod", "-trimpath", "-tags", _TAGS, "-ldflags", version)
        under_way.go("install", *options, *tools)
    return Programs(final)


def ours(source: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return a Go program of this tree, from the cache, where a hash of its sources names it, or
    built into it. Raise ProgramsError.
    """
    made_of = hashlib.sha256()
    for file in sorted(source.iterdir()):
        made_of.update(file.name.encode() + b"\0" + file.read_bytes())
    final = cache_dir(environ) / "bin" / f"{source.name}-{made_of.hexdigest()[:16]}"
    program = final / source.name
    if not runs(program):
        with build(final, f"building {source.name} with Go, once", 0, environ) as under_way:
            shutil.copytree(source, under_way.module, dirs_exist_ok=True)
            into = str(under_way.into / source.name)
            under_way.go("build", "-trimpath", "-tags", "nri_no_wasm", "-o", into, ".")
    return program


def main(arguments: Sequence[str] | None = None) -> int:
    """Build containerds into the cache; print where they are."""
    parser = argparse.ArgumentParser(prog="python -m tools.programs", description=main.__doc__)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(RELEASES))
    named = parser.parse_args(arguments).releases or [DEFAULT.name]
    if unknown := sorted({*named} - RELEASES.keys()):
        parser.error(f"RELEASE: invalid value {unknown[0]}: must be one of {', '.join(RELEASES)}")
    return print_paths(lambda: [ensure(release=RELEASES[name]).directory for name in named])


if __name__ == "__main__":
    sys.exit(main())
