"""Fetches and builds the programs of two Docker releases into the cache, once.

OLD is Debian's docker.io, unpacked but not installed. NEW is dockerd built from its Go module, with
runc, because the machine's runc may lack time namespaces, and with the lab's containerd. The
directories of a release's programs come first on PATH of its daemons. Nothing is pulled from a
registry of images.
"""

from __future__ import annotations

import dataclasses
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import building, kubernetes, programs
from tools.building import Build, build, cache_dir, runs
from tools.images import debian
from tools.progress import step
from tools.scratch import scratch

_MOBY: Final = "github.com/moby/moby/v2"
_MOBY_VERSION: Final = "2.0.0-beta.24"
_RUNC: Final = "github.com/opencontainers/runc"
_RUNC_VERSION: Final = "1.3.4"
_FREE_BYTES_WANTED: Final = 3_000_000_000

_DEBIAN_VERSION: Final = "20.10"
_DEBIAN_PROGRAMS: Final = (
    *("dockerd", "docker", "containerd", "containerd-shim-runc-v2", "ctr", "runc"),
)
_LIBRARIES: Final = re.compile(
    r"lib(devmapper|systemd|udev|selinux|pcre2-8|cap|gcrypt|gpg-error|lz4|lzma|zstd)\.so\..*"
)
"""The libraries of Debian's dockerd that a machine may lack."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Docker. ensure: returns the directories of its programs, and fetches or builds
    what the cache lacks. seccomp: whether its runc has seccomp. cdi: whether dockerd has CDI."""

    name: str
    ensure: Callable[[], Sequence[Path]]
    seccomp: bool
    cdi: bool


def _debian() -> Sequence[Path]:
    """Unpack Debian's packages. Raise ImageError."""
    final = cache_dir() / "bin" / f"docker-debian-{_DEBIAN_VERSION}"
    if all(runs(final / name) for name in _DEBIAN_PROGRAMS):
        return (final,)
    with (
        step(f"fetching Debian's docker.io {_DEBIAN_VERSION}, once") as shown,
        scratch(final.parent, ".fetching-") as directory,
    ):
        packages = debian.download(["docker.io"], platform.machine(), directory)
        root, made = directory / "root", directory / "made"
        for package in packages:
            building.output(["dpkg-deb", "--extract", package, root])
        made.mkdir()
        wanted = {*_DEBIAN_PROGRAMS}
        for path in root.rglob("*"):
            if path.is_file() and (path.name in wanted or _LIBRARIES.fullmatch(path.name)):
                shutil.copy(path, made / path.name)
        shown.result = f"{len(packages)} packages"
        shutil.rmtree(final, ignore_errors=True)
        made.rename(final)
    return (final,)


def _moby() -> Sequence[Path]:
    """Build dockerd and runc from their modules. Raise ProgramsError."""
    version = f"-X {_MOBY}/dockerversion.Version=29.8.0-dev"
    dockerd = _built("dockerd", _MOBY_VERSION, f"{_MOBY}/cmd/dockerd", version)
    runc = _built("runc", _RUNC_VERSION, _RUNC, f"-X main.version={_RUNC_VERSION}", "1")
    return dockerd, runc, programs.ensure().directory


def _built(name: str, version: str, package: str, link_option: str, cgo: str = "0") -> Path:
    """Return the directory of a Go program."""
    final = cache_dir() / "bin" / f"{name}-{version}"
    if not runs(final / name):
        title = f"building {name} {version} with Go, once"
        with build(final, title, _FREE_BYTES_WANTED) as under_way:
            environ = {**under_way.environ, "CGO_ENABLED": cgo}
            here: Build = dataclasses.replace(under_way, environ=environ)
            here.go("mod", "init", "gpuslice.io/lab")
            here.go("get", f"{package}@v{version}")
            kubernetes.compile_in(here, package, name, link_option)
    return final


OLD: Final = Release("20.10", _debian, seccomp=True, cdi=False)
NEW: Final = Release("29", _moby, seccomp=False, cdi=True)
RELEASES: Final = {each.name: each for each in (OLD, NEW)}
