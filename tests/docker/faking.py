"""Stand-ins for the machine and for Docker, and a grant of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpuslice.contract import grant_file
from gpuslice.docker.containers import Container
from gpuslice.docker.grants import Grant, device_name, encode
from gpuslice.docker.machine import Machine
from gpuslice.docker.reconciler import Reconciler
from gpuslice.gpu.bookings import Bookings
from nri_plugin.policy.model import Gpu

RUN_DIR = "/run/gpuslice"
GPU = Gpu("GPU-a", 0, 100)
UNRESOLVABLE = f"failed to inject CDI devices: unresolvable CDI devices {device_name('web')}"


def grant(key: str = "web", memory_bytes: int = 40, core: int = 30) -> Grant:
    return Grant(key, key, [grant_file.Gpu(GPU.uuid, memory_bytes, core or 100, 0)], core)


def container(status: str, error: str = "", restarts: bool = True) -> Container:
    return Container("web", "web", "web", encode(grant()), status, restarts, error)


RUNNING, FAILED = container("running"), container("exited", UNRESOLVABLE)


@dataclass
class Files:
    """Stands for Machine, with sets of keys instead of files. A reboot keeps the texts only."""

    texts: dict[str, Grant | None] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    specs: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    inventory: Any = field(default_factory=lambda: SimpleNamespace(gpus=[GPU], problem=None))
    settings: Any = field(default_factory=lambda: SimpleNamespace(run_dir=Path(RUN_DIR)))

    def stored(self) -> dict[str, Grant | None]:
        return dict(self.texts)

    def has_files(self, key: str) -> bool:
        return key in self.files

    def has_spec(self, key: str) -> bool:
        return key in self.specs and key in self.texts

    def remake(self, made: Grant) -> None:
        self.steps.append("make")
        self.texts[made.key] = made
        self.files.add(made.key)
        self.specs.add(made.key)

    def withdraw(self, key: str) -> None:
        self.specs.discard(key)

    def remove(self, key: str) -> None:
        self.steps.append("free")
        self.withdraw(key)
        self.files.discard(key)
        self.texts.pop(key, None)
        self.notes.pop(key, None)

    def note(self, key: str, _: str, problem: str) -> None:
        self.notes[key] = problem


@dataclass
class Docker:
    """Stands for Docker. up: it answers. A start needs the files and the spec."""

    made: Files
    up: bool = True
    known: dict[str, Container] = field(default_factory=dict)

    def listed(self) -> Sequence[Container]:
        if not self.up:
            raise ConnectionRefusedError
        return [*self.known.values()]

    def start(self, key: str) -> None:
        self.made.steps.append("start")
        if key not in self.made.specs or key not in self.made.files:
            error = f"unresolvable CDI devices {device_name(key)}"
            self.known[key] = replace(self.known[key], status="exited", error=error)
            raise OSError(error)
        self.known[key] = replace(self.known[key], status="running", error="")

    def remove(self, key: str, *, volumes: bool) -> None:
        self.made.steps.append("remove")
        self.known.pop(key, None)


def hosted(directory: Path) -> tuple[Files, Docker, Bookings, Reconciler]:
    files, bookings = Files(), Bookings(directory / "bookings")
    docker = Docker(files)
    return files, docker, bookings, Reconciler(cast(Machine, files), bookings, cast(Any, docker))
