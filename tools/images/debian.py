"""Makes a directory in the cache with Debian's Python and the shared libraries that it loads.

apt-get resolves, fetches and verifies the packages but installs none. It works on an empty state,
so it does not matter what is installed on this machine. The packages are fetched once for each list
of names. `python -m tools.images --fetch` fetches newer ones.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import building
from tools.images.oci import ARCHITECTURES, ImageError, cached, is_elf
from tools.progress import step

_FORMAT: Final = 1
_MERGED: Final = ("bin", "lib", "lib64", "sbin")
"""The directories that are links to directories of /usr, as in Debian."""
_KEPT: Final = re.compile(
    r"usr/bin/python3[^/]*$|usr/lib/python3[^/]*/|etc/python3[^/]*/|usr/share/doc/[^/]*/copyright$"
)
_SKIPPED: Final = re.compile(
    r"/(distutils|ensurepip|idlelib|lib2to3|pydoc_data|sqlite3|test|tkinter|turtledemo|curses)/"
    r"|/lib-dynload/(_codecs_(cn|hk|iso2022|jp|kr|tw)|_curses|_curses_panel|_dbm|_gdbm|_multibytecodec"
    r"|_sqlite3|_test|_xx|nis|readline|audioop|ossaudiodev|xx)[^/]*\.so$"
    r"|/encodings/(big5|cp9[345]|euc|gb|hz|iso2022|johab|shift)[^/]*$"
    r"|/(gconv|audit)/|/__pycache__/|\.a$"
)
_LIBRARY: Final = re.compile(r"usr/lib(64)?/([^/]*/)?[^/]*\.so[^/]*$")


@dataclass(frozen=True, slots=True)
class System:
    """Unpacked packages. wanted: the names of the requested ones. root: the directory with their
    files and those of their dependencies. packages: "NAME VERSION" of each that has a file."""

    machine: str
    wanted: Sequence[str]
    root: Path
    packages: Sequence[str] = ()

    @property
    def python(self) -> str:
        """The file name of Python, for example python3.11."""
        return os.readlink(self.root / "usr/bin/python3")

    def compile(self, tree: Path, inside: str) -> None:
        """Compile the modules below `tree`, whose path in the image is `inside`. Raise ImageError.

        Python uses these compiled files without comparing them with the modules, so files need no
        times. Python of the same version writes the same bytes on every architecture.
        """
        here = platform.machine()
        unpacked = (self if self.machine == here else system(self.wanted, here)).root / "usr"
        loader = next(unpacked.glob("lib64/ld-linux-*"))
        libraries = ":".join(str(path) for path in unpacked.glob("lib/*-linux-gnu"))
        run = [str(loader), "--library-path", libraries, str(unpacked / "bin" / self.python)]
        options = ["--invalidation-mode", "unchecked-hash", "-q", "-f"]
        places = ["-s", str(tree), "-p", inside]
        environ = {"PYTHONHOME": str(unpacked), "PYTHONHASHSEED": "0", "PATH": os.defpath}
        command = [*run, "-S", "-m", "compileall", *options, *places, str(tree)]
        building.output(command, ImageError, env=environ)


def system(packages: Sequence[str], machine: str, fetch: bool = False) -> System:
    """Return the packages' files, from the cache or fetched into it. Raise ImageError."""
    for program in ("apt-get", "dpkg-deb", "readelf"):
        if shutil.which(program) is None:
            raise ImageError(
                f"{program} is not on this machine: images are built from Debian packages. "
                "manifests/images has Containerfiles for other machines."
            )
    release = Path("/etc/os-release").read_text()
    rules = (_FORMAT, sorted(packages), _KEPT.pattern, _SKIPPED.pattern)
    made_of = f"{release} {rules}".encode()
    directory = building.cache_dir() / "debian"
    final = directory / f"{machine}-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if fetch:
        shutil.rmtree(final, ignore_errors=True)

    def make(whole: Path) -> Path:
        with step(f"fetching Debian packages for {machine}") as shown:
            archives = download(packages, machine, whole)
            shown.result = f"{len(archives)} packages"
        made = whole / "made"
        _unpack(archives, packages, made)
        ours = System(machine, packages, made / "root")
        ours.compile(ours.root / "usr/lib", "/usr/lib")
        return made

    cached(final, f"{machine}-*", make)
    listed = (final / "packages.txt").read_text().splitlines()
    return System(machine, packages, final / "root", listed)


def download(packages: Sequence[str], machine: str, whole: Path) -> list[Path]:
    """Fetch the packages and their dependencies, with newer package lists if this fails."""
    state, archives = whole / "state", whole / "archives"
    for each in (state / "lists/partial", archives / "partial", whole / "cache"):
        each.mkdir(parents=True)
    (state / "status").touch()
    name = ARCHITECTURES[machine]
    options = {
        "APT::Architecture": name,
        "APT::Architectures": name,
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Dir::State::status": state / "status",
        "Dir::Cache": whole / "cache",
        "Dir::Cache::archives": archives,
        "Debug::NoLocking": "true",
    }
    command: list[str] = [
        "apt-get",
        "--quiet",
        *(f"-o{key}={value}" for key, value in options.items()),
    ]
    install = ["install", "--yes", "--no-install-recommends", "--download-only", *packages]
    try:
        building.output([*command, *install], ImageError)
    except ImageError:
        newer = [*command, f"-oDir::State::lists={state / 'lists'}"]
        subprocess.run([*newer, "update"], capture_output=True)
        building.output([*newer, *install], ImageError)
    return sorted(archives.glob("*.deb"))


def _unpack(archives: Iterable[Path], whole: Sequence[str], made: Path) -> None:
    """Unpack Python, the packages in `whole`, and the libraries that these load."""
    root = made / "root"
    belongs: dict[str, str] = {}
    versions: dict[str, str] = {}
    for path in archives:
        show: list[str | Path] = ["dpkg-deb", "--showformat=${Package} ${Version}", "--show", path]
        name, versions[name] = building.output(show, ImageError).split()
        for where in _extract(path, root):
            belongs[where] = name
    wanted = {where for where in belongs if _KEPT.match(where)}
    wanted |= {where for where, name in belongs.items() if name in whole}
    kept = wanted | _libraries(root, set(belongs) - wanted, wanted)
    packages = {belongs[where] for where in kept if not where.startswith("usr/share/doc/")}
    for where in belongs:
        if where not in kept:
            (root / where).unlink()
    for name in _MERGED:
        if (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    lines = [f"{name} {versions[name]}\n" for name in sorted(packages)]
    (made / "packages.txt").write_text("".join(lines))


def _extract(package: Path, root: Path) -> Iterable[str]:
    """Unpack the package's chosen files, and yield their paths. A path in /lib becomes one in
    /usr/lib, which are the same directory."""
    with (
        subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
        ) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar,
    ):
        for member in tar:
            where = os.path.normpath(member.name)
            if where.startswith(tuple(f"{name}/" for name in _MERGED)):
                where = f"usr/{where}"
            chosen = _KEPT.match(where) or _LIBRARY.match(where)
            if not chosen or _SKIPPED.search(f"/{where}") or member.isdir():
                continue
            target = root / where
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                merged = "/usr" if member.linkname.startswith(("/lib/", "/lib64/")) else ""
                target.symlink_to(merged + member.linkname)
            elif (file := tar.extractfile(member)) is not None:
                target.write_bytes(file.read())
                target.chmod(member.mode & 0o777)
            yield where


def _libraries(root: Path, candidates: Iterable[str], wanted: Iterable[str]) -> set[str]:
    """Return the candidates that the wanted files load, directly or through other libraries."""
    by_name: dict[str, list[str]] = {}
    for where in candidates:
        by_name.setdefault(Path(where).name, []).append(where)
    found: set[str] = set()
    queue = list(wanted)
    while queue:
        needed = _needed_by(root / where for where in queue)
        queue = []
        for where in (each for name in needed for each in by_name.get(name, ())):
            both = {where}
            if (path := root / where).is_symlink():
                both.add(os.path.normpath(Path(where).parent / path.readlink()))
            queue += both - found
            found |= both
    return found


def _needed_by(files: Iterable[Path]) -> set[str]:
    """Return the names of the libraries with which these files are linked."""
    elf = [path for path in files if not path.is_symlink() and is_elf(path)]
    if not elf:
        return set()
    said = subprocess.run(["readelf", "--dynamic", "--wide", *elf], text=True, capture_output=True)
    return set(re.findall(r"\(NEEDED\)\s+Shared library: \[([^]]+)\]", said.stdout))
