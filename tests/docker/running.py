"""Runs the product's commands on a machine with Docker, for the tests of `gpuslice run --image`."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import docker
import pytest
from docker.errors import APIError

from gpuslice.contract import names
from lab.docker.image import IMAGE
from lab.docker.machine import Machine
from lab.node.namespace import Inside, environment

SMALL: Final = ("--memory", "10GiB", "--core", "30")
_WAIT_S: Final = 90.0
_RUN_S: Final = 120.0
_POLL_S: Final = 0.1
_LOCK: Final = Path(names.HOST_RUN_DIR, ".lock")
_FILES: Final = (names.HOST_RUN_DIR, "/var/run/cdi", "/var/lib/gpuslice/docker", names.BOOKINGS_DIR)
Done = subprocess.CompletedProcess[str]


@dataclass
class Runs:
    """Runs the product's commands on the machine."""

    machine: Machine
    client: docker.DockerClient
    directory: Path
    started: list[Inside] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    """Further variables of the commands."""

    @property
    def environment(self) -> Mapping[str, str]:
        return {**self.machine.environment, names.ENV_BOOKINGS: names.BOOKINGS_DIR, **self.environ}

    def words(self, *words: str, image: str = IMAGE, limit: Sequence[str] = SMALL) -> list[str]:
        """Return the command line of `gpuslice run` on the machine."""
        given = [*("run", *limit, "--image", image, "--network", "none"), *words]
        return [sys.executable, "-m", "gpuslice", *given]

    def run(self, *words: str, given: str = "", status: int = 0, **options: object) -> Done:
        done = self.tried(*words, given=given, **options)
        assert done.returncode == status, done
        return done

    def tried(self, *words: str, given: str = "", **options: object) -> Done:
        """Run a command that may fail."""
        command = self.machine.namespace.enter(self.words(*words, **options))  # type: ignore[arg-type]
        environ = environment(self.environment)
        return subprocess.run(
            command, env=environ, input=given, text=True, capture_output=True, timeout=_RUN_S
        )

    def refused(self, *words: str, status: int = 125, **options: object) -> str:
        """Run what must be refused. It must leave nothing."""
        before = self.files()
        done = self.run(*words, status=status, **options)  # type: ignore[arg-type]
        assert self.files() == before
        assert done.stdout == "" and done.stderr.startswith("gpuslice: "), done
        return done.stderr

    def gpuslice(self, *words: str) -> Done:
        return self.machine.namespace.run(
            [sys.executable, "-m", "gpuslice", *words], self.environment
        )

    def start(self, *words: str, name: str) -> Inside:
        """Start a command. Its output is in the files `name`.out and `name`.err."""
        out, err = ((self.directory / f"{name}.{each}").open("w") for each in ("out", "err"))
        with out, err:
            start = self.machine.namespace.start
            self.started.append(start([*words], out, err, self.environment))
        return self.started[-1]

    def serve(self) -> None:
        """Start `gpuslice host` as the installed service does."""
        self.start(sys.executable, "-m", "gpuslice", "host", name="host")
        self.until(lambda: "msg=serving" in self.text("host.err"), "host.err")

    def kill_host(self) -> None:
        """Kill the `gpuslice host` that holds the lock."""
        with contextlib.suppress(OSError):
            text = self.machine.namespace.outside(_LOCK).read_text()
            if pid := text.partition("pid=")[2].strip():
                self.machine.run(["kill", "-9", pid])

    def text(self, name: str) -> str:
        return (self.directory / name).read_text()

    def until(self, done: Callable[[], bool], shown: str = "") -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, shown and self.text(shown)
            time.sleep(_POLL_S)

    def running(self, name: str) -> bool:
        with contextlib.suppress(APIError):
            return bool(self.client.containers.get(name).attrs["State"]["Running"])
        return False

    def containers(self) -> Sequence[object]:
        return list(self.client.api.containers(all=True))

    def exec(self, name: str, *command: str) -> str:
        output = self.client.containers.get(name).exec_run([*command]).output
        return bytes(output).decode()  # type: ignore[arg-type]

    def files(self) -> Sequence[str]:
        """Return the names of the grants' files and bookings."""
        found = self.machine.run(["find", *_FILES, "-maxdepth", "1", "-mindepth", "1"]).stdout
        return [each for each in sorted(found.split()) if "/." not in each]


@pytest.fixture
def runs(machine: Machine, tmp_path: Path) -> Iterator[Runs]:
    client = docker.DockerClient(machine.url, version="auto")
    made = Runs(machine, client, tmp_path)
    for left in made.files():  # of tests that write specs of their own
        machine.run(["rm", "-rf", left])
    yield made
    for container in client.containers.list(all=True):
        with contextlib.suppress(APIError):
            container.remove(force=True)
    for process in made.started:
        if process.running:
            process.kill(signal.SIGKILL)
    client.close()
    made.kill_host()
    machine.run(["sh", "-c", f"umount -l /run/gpuslice/*; rm -rf {' '.join(_FILES)}"])
