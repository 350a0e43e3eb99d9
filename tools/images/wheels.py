"""Unpacks the Python packages of an image: required wheels, and the product's own wheel.

Required wheels have the versions that are installed in this environment, with which the tests run.
They are fetched once for each set of versions.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from tools import building
from tools.images.debian import System
from tools.images.oci import ImageError, cached
from tools.images.table import ROOT
from tools.progress import step

_FORMAT: Final = 1
_GLIBC: Final = range(5, 37)
"""The minor versions of glibc 2 that a wheel may require, up to the oldest Debian's."""
_BUNDLE: Final = ".libs/"
"""A directory of a wheel with bundled libraries, whose rewritten files `strip` would damage."""
_SLIM: Final = ROOT / "manifests" / "images" / "slim.sh"
"""A script that removes unneeded files. The Containerfiles run it too."""


def installed(requirements: Sequence[str], system: System, place: str) -> Path:
    """Return a directory with the required packages. Its `site` has their files, compiled for the
    path `place` in the image. Its `packages.txt` lists "NAME VERSION". Raise ImageError."""
    here = sorted({f"{each.name}=={each.version}" for each in metadata.distributions()})
    facts = (_FORMAT, system.machine, system.python, place, _SLIM.read_text())
    made_of = f"{facts} {list(requirements)} {here}"
    directory = building.cache_dir() / "wheels"
    final = directory / hashlib.sha256(made_of.encode()).hexdigest()[:16]

    def make(whole: Path) -> Path:
        with step(f"fetching Python packages for {system.machine}") as shown:
            wheels = _download(requirements, here, system, whole)
            shown.result = f"{len(wheels)} wheels"
        made = whole / "made"
        libraries = [each for wheel in wheels for each in _unpack(wheel, made / "site")]
        if libraries:
            same = system.machine == platform.machine()
            strip = "strip" if same else f"{system.machine}-linux-gnu-strip"
            subprocess.run([strip, "--strip-debug", *libraries], check=True)
        building.output(["sh", _SLIM, made / "site"], ImageError)
        names = [wheel.name.split("-")[:2] for wheel in wheels]
        (made / "packages.txt").write_text("".join(f"{n} {v}\n" for n, v in sorted(names)))
        system.compile(made / "site", place)
        return made

    return cached(final, "[0-9a-f]*", make)


def _download(
    requirements: Sequence[str], here: Sequence[str], system: System, whole: Path
) -> list[Path]:
    constraints = whole / "constraints.txt"
    constraints.write_text("".join(f"{each}\n" for each in here))
    version = system.python.removeprefix("python")
    tag = f"cp{version.replace('.', '')}"
    platforms = [f"manylinux_2_{minor}_{system.machine}" for minor in reversed(_GLIBC)]
    platforms += [f"manylinux2014_{system.machine}", f"linux_{system.machine}", "any"]
    _pip(
        *("download", "--only-binary=:all:", "--constraint", str(constraints)),
        *("--python-version", version, "--implementation", "cp"),
        *(f"--abi={abi}" for abi in (tag, "abi3", "none")),
        *(f"--platform={each}" for each in platforms),
        *("--dest", str(whole / "wheels"), *requirements),
    )
    return sorted((whole / "wheels").glob("*.whl"))


def _pip(verb: str, *arguments: str) -> None:
    """Run pip, whose own configuration names the index."""
    building.output([sys.executable, "-m", "pip", verb, "--quiet", *arguments], ImageError)


def _unpack(wheel: Path, site: Path) -> list[str]:
    """Unpack the wheel, and return the paths of its libraries that may be stripped."""
    archive = zipfile.ZipFile(wheel)
    bundles = any(_BUNDLE in name for name in archive.namelist())
    libraries = []
    for name in archive.namelist():
        if name.endswith("/"):
            continue
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(name))
        target.chmod(0o644)
        if ".so" in target.suffixes and not bundles:
            libraries.append(str(target))
    return libraries


def own(sources: str, system: System, place: str) -> Path:
    """Return a directory with the product's packages from its wheel, compiled for `place`. It is
    built once for each `sources`, a hash. Raise ImageError."""
    machine = system.machine
    options = ["--no-build-isolation", "--no-deps"]
    if machine != platform.machine():
        toolchain = ROOT / "cmake" / f"{machine}.cmake"
        options += ["--config-settings", f"cmake.define.CMAKE_TOOLCHAIN_FILE={toolchain}"]

    def make(whole: Path) -> Path:
        with step(f"building the wheel for {machine}"):
            _pip("wheel", *options, f"--wheel-dir={whole}", str(ROOT))
        (wheel,) = whole.glob("*.whl")
        site = whole / "site"
        _unpack(wheel, site)
        building.output(["sh", _SLIM, site], ImageError)
        system.compile(site, place)
        return site

    return cached(building.cache_dir() / "wheels" / f"own-{machine}-{sources}", "own-*", make)
