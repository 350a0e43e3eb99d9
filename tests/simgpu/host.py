"""A simulated host for one test. At the test's end, nothing of the host remains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simgpu import cli
from simgpu.state_dir import StateDir
from simgpu.wire import Role
from tests.simgpu.peer import Peer
from tests.support import GIB as GIB
from tests.support import ROOT, run, until

PLAIN = ROOT / "tests" / "plain_host.toml"


def simgpu(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m simgpu ...`, as on a command line."""
    environ = {key: value for key, value in os.environ.items() if key != "SIMGPU_DIR"}
    return run(sys.executable, "-m", "simgpu", *arguments, env=environ)


def start(directory: Path, *options: str | Path) -> subprocess.Popen[bytes]:
    """Start the daemon as `python -m simgpu up` does, and return its process."""
    state_dir = StateDir.at(directory)
    state_dir.create()
    command = [sys.executable, "-m", "simgpu", "up", "--foreground", "--dir", directory, *options]
    with state_dir.log.open("ab") as log:
        daemon = subprocess.Popen(command, cwd=ROOT, stderr=log, start_new_session=True)
    until(lambda: daemon.poll() is not None or cli._answers(state_dir), "the daemon serves")
    assert daemon.returncode is None, state_dir.log.read_text()
    return daemon


def stop(directory: Path, daemon: subprocess.Popen[bytes]) -> None:
    assert cli.main(["down", "--dir", str(directory)]) == 0
    daemon.wait()


@dataclass
class Host:
    directory: Path
    options: Sequence[str | Path] = ()
    build_dir: Path = Path()
    _daemon: subprocess.Popen[bytes] | None = None
    _children: list[subprocess.Popen[str]] = field(default_factory=list)
    _peers: list[Peer] = field(default_factory=list)

    def up(self) -> None:
        if self._daemon is not None:
            self._daemon.wait()
        self._daemon = start(self.directory, "--config", PLAIN, *self.options)

    def down(self) -> None:
        """Stop the host, and assert that the daemon's log has no traceback."""
        self.send_clients_away()
        log = self.directory / "log"
        said = log.read_text() if log.exists() else ""
        assert self._daemon is not None
        stop(self.directory, self._daemon)
        assert not self.directory.exists()
        assert "Traceback" not in said, said

    def send_clients_away(self) -> None:
        """End every process and connection of this test."""
        while self._peers:
            self._peers.pop().close()
        while self._children:
            child = self._children.pop()
            child.kill()
            child.communicate()

    def socket(self, minor: int) -> Path:
        return self.directory / "gpus" / f"{minor}.sock"

    def connect(self, minor: int, role: Role = Role.CUDA) -> Peer:
        """Connect to a GPU from the test's own process. `down` closes the connection."""
        peer = Peer(self.socket(minor), role)
        self._peers.append(peer)
        return peer

    def fault(self, *arguments: str, gpu: int = 0) -> None:
        done = simgpu("fault", "--dir", self.directory, "--gpu", str(gpu), *arguments)
        assert done.returncode == 0, done.stderr

    def peer(self, *commands: str, gpu: int = 0) -> tuple[subprocess.Popen[str], list[str]]:
        """Start peer.py with `commands`. Return the process, and its output once all are done."""
        command = [sys.executable, "-m", "tests.simgpu.peer", str(self.socket(gpu)), *commands]
        child = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._children.append(child)
        lines: list[str] = []
        assert child.stdout is not None
        while line := child.stdout.readline().strip():
            if line == "done":
                return child, lines
            lines.append(line)
        raise AssertionError(f"{commands}: ended with {child.wait()}")

    def env(self) -> dict[str, str]:
        """Return the environment of a program that uses the driver's libraries."""
        return {
            **os.environ,
            "SIMGPU_DIR": str(self.directory),
            "LD_LIBRARY_PATH": str(self.build_dir / "lib" / "simgpu"),
        }

    def run(self, *command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        return run(*command, env={**self.env(), **environ})

    def python(self, code: str) -> str:
        done = self.run(sys.executable, "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def program(self, module: str, *arguments: str, **environ: str) -> None:
        """Run a program of tests.simgpu.programs, which must end with status 0."""
        name = f"tests.simgpu.programs.{module}"
        done = self.run(sys.executable, "-m", name, *arguments, **environ)
        assert done.returncode == 0, done.stderr

    def smi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.build_dir / "bin" / "nvidia-smi", *arguments)
