"""The lab's own containerd, on private paths or on a simulated host (host.py).

This module starts and stops the daemon; its configuration is in containerd_config.py. It does
not handle pods (cri.py) or the node agent.
"""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab import tail
from lab.node import containerd_config
from lab.node.containerd_config import Options
from lab.node.namespace import Inside, Namespace
from tools.programs import DEFAULT, Programs, Release

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainerdError(RuntimeError):
    """containerd does not start or refuses an image. The text ends with its output."""


@dataclass(frozen=True, slots=True)
class Paths:
    """containerd's paths in the lab's mount namespace. cdi: where containerd itself looks for CDI
    specs. cni: directories of the pod networks' programs and configuration."""

    socket: Path
    nri_socket: Path
    state: Path
    cdi: Path
    cni: tuple[Path, Path]
    config: Path
    log: Path


def private(directory: Path) -> Paths:
    """Return paths below the lab's directory, where processes of this machine see the same files.
    The lab writes no CDI spec to the directory `cdi`."""
    return Paths(
        directory / "c.sock",
        directory / "nri" / "nri.sock",
        directory / "state",
        directory / "cdi",
        (directory / "cni" / "bin", directory / "cni" / "conf"),
        directory / "containerd.toml",
        directory / "containerd.log",
    )


def standard(directory: Path) -> Paths:
    """Return containerd's default paths, for a simulated host (host.py)."""
    return Paths(
        Path("/run/containerd/containerd.sock"),
        Path("/run/nri/nri.sock"),
        Path("/run/containerd"),
        Path("/run/cdi"),
        (Path("/opt/cni/bin"), Path("/etc/cni/net.d")),
        Path("/etc/containerd/config.toml"),
        directory / "containerd.log",
    )


class Containerd:
    """The daemon. `start` and `stop` may alternate; containers keep running in between."""

    def __init__(
        self,
        namespace: Namespace,
        programs: Programs,
        release: Release = DEFAULT,
        options: Options | None = None,
        installed: tuple[Paths, str] | None = None,
    ) -> None:
        """installed: the daemon's paths and configuration on a simulated host (host.py)."""
        directory = namespace.directory
        self._namespace = namespace
        self._programs = programs
        self.process: Inside | None = None
        if installed is not None:
            self.paths, text = installed
        else:
            self.paths = private(directory)
            for name in ("cdi", "cni/bin", "cni/conf", "nri/plugins", "nri/conf.d", "opt"):
                (directory / name).mkdir(parents=True, exist_ok=True)
            text = containerd_config.text(release, directory, options or Options())
            if not release.has_socket_dir:
                namespace.cover(Path("/run"))  # shims listen in /run/containerd/s
        namespace.write(self.paths.config, text)

    def start(self) -> None:
        """Return when containerd answers. Raises ContainerdError."""
        command: list[str | Path] = [self._programs["containerd"], "--config", self.paths.config]
        # containerd looks for the shim on PATH, where the lab's shim must precede any other.
        environ = {"PATH": f"{self._programs.directory}:{_PATH}"}
        with self.paths.log.open("a") as log:
            self.process = self._namespace.start(command, log, subprocess.STDOUT, environ)
        deadline = time.monotonic() + 30.0
        while not self._answers():
            if not self.process.running or time.monotonic() > deadline:
                raise ContainerdError(f"containerd did not come up:\n{tail(self.paths.log)}")
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.running:
            self.process.kill(number)
        self.process = None

    def ctr(self, *arguments: str | Path) -> str:
        socket = ("--address", self.paths.socket, "--namespace", "k8s.io")
        done = self._namespace.run([self._programs["ctr"], *socket, *arguments])
        if done.returncode != 0:
            raise ContainerdError(f"ctr {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def import_image(self, archive: Path) -> None:
        self.ctr("images", "import", "--local", archive)

    def _answers(self) -> bool:
        try:
            self.ctr("version")
        except ContainerdError:
            return False
        return True
