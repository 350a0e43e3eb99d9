"""The containerd that the lab runs, and Go programs of this tree: how they are found and built.

Order: for the default release the directory that $GPUSLICE_BIN names; the cache; else built
(building.py). Standard library only: setup runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import releases
from tools.building import ProgramsError, build, cache_dir, print_paths, runs
from tools.releases import DEFAULT, NRI_MODULE, RELEASES, Release

_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
_TAGS: Final = "no_btrfs,no_devmapper,no_zfs"
_FREE_BYTES_WANTED: Final = 3 << 30
"""Modules, Go's build cache and the programs take 1.3 GB together, measured; with a margin."""


@dataclass(frozen=True, slots=True)
class Programs:
    """A directory that holds containerd, its shim and ctr."""

    directory: Path

    @property
    def containerd(self) -> Path:
        return self.directory / "containerd"

    @property
    def ctr(self) -> Path:
        return self.directory / "ctr"


def find(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs | None:
    """The programs on this machine, or None; builds nothing.

    Raises ProgramsError if $GPUSLICE_BIN names a directory without them.
    """
    if release.at is not None:
        return _there(release.at, f"{release.at}")
    if release is DEFAULT and (chosen := environ.get("GPUSLICE_BIN")):
        return _there(Path(chosen), f"GPUSLICE_BIN={chosen}")
    cached = _cached(environ, release)
    return Programs(cached) if all(runs(cached / name) for name in _PROGRAMS) else None


def _there(directory: Path, named: str) -> Programs:
    missing = [name for name in _PROGRAMS if not runs(directory / name)]
    if missing:
        raise ProgramsError(
            f"{named}: no {', '.join(missing)} there; without it they are built into the cache"
        )
    return Programs(directory)


def of_machine(directory: Path) -> Release:
    """The release of the containerd in `directory`. Raises ProgramsError."""
    programs = _there(directory, str(directory))
    done = subprocess.run([programs.containerd, "--version"], text=True, capture_output=True)
    try:
        return releases.of_machine(directory, done.stdout.split()[2])
    except (IndexError, ValueError) as error:
        raise ProgramsError(f"{programs.containerd} --version: no version in the output") from error


def ensure(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs:
    """The programs, built if this machine has none yet. Raises ProgramsError."""
    return find(environ, release) or _build(environ, release)


def ours(source: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A Go program of this tree, built into the cache under a hash of its sources.

    Raises ProgramsError.
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


def _cached(environ: Mapping[str, str], release: Release) -> Path:
    return cache_dir(environ) / "bin" / release.directory


def _build(environ: Mapping[str, str], release: Release) -> Programs:
    """One `go install` of all three, so that they share the compiled packages."""
    final = _cached(environ, release)
    tools = [f"{release.module}/cmd/{name}" for name in _PROGRAMS]
    version = f"-s -w -X {release.module}/version.Version=v{release.version}"
    title = f"building {release.title} with Go, once"
    with build(final, title, _FREE_BYTES_WANTED, environ) as under_way:
        under_way.go("mod", "init", "gpuslice.io/lab")
        under_way.go("get", *(f"{tool}@v{release.version}" for tool in tools))
        if not release.own_nri:
            under_way.go("get", f"{NRI_MODULE}@v{release.nri}")
        options = ("-v", "-mod=mod", "-trimpath", "-tags", _TAGS, "-ldflags", version)
        under_way.go("install", *options, *tools)
    return Programs(final)


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
