"""The lab's namespaces seen from the owner: open, run commands inside, close.

The owner stays outside. Sockets and logs are in a directory that both sides see. Mounts and
processes exist only inside (holder.py). `pid` is the namespaces' first process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from lab.node import network
from lab.node.network import Link

_ROOT: Final = Path(__file__).resolve().parents[2]
PREFIX: Final = "gpuslice-lab-"
_END_S: Final = 30.0
PARENT_CHARS_MAX: Final = 18
"""containerd accepts 42 characters for the directory of its shims' sockets, because a unix socket's
path has at most 107. The lab's own part of that directory has 24."""


class NamespaceError(RuntimeError):
    """This machine does not allow namespaces. The text names a remedy."""


class Namespace:
    """Mount and PID namespaces with a directory. After `close` all three are gone.

    own_network: add a network namespace, which `link` connects with this machine. parent: where the
    directory is made. The lab's cgroup has the directory's name.
    """

    link: Link | None = None

    def __init__(self, own_network: bool = False, parent: Path | None = None) -> None:
        temporary = tempfile.gettempdir()
        # The paths of sockets below a longer directory would not fit.
        temporary = temporary if len(temporary) <= PARENT_CHARS_MAX else "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent or temporary))
        self.cgroup = self.directory.name
        self._kinds = ["--mount", "--pid", *(["--net"] * own_network)]
        self._holder = subprocess.Popen(
            [
                *(sys.executable, "-m", "lab.node.holder", str(self.directory), self.cgroup),
                *(["--net"] * own_network),
            ],
            cwd=_ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "held\n":
            self._holder.communicate()
            raise NamespaceError(
                "this root may not make a mount and a PID namespace (see the line above); "
                "a machine that is a container itself must be a privileged one"
            )
        (unshare,) = children(self._holder.pid)
        (self.pid,) = children(unshare)
        self._started: list[Inside] = []
        if own_network:
            try:
                self.link = network.connect(self.pid, self.run)
            except BaseException:
                self.close()
                raise

    @property
    def alive(self) -> bool:
        return self._holder.poll() is None

    def cover(self, place: Path) -> None:
        """Mount an overlay over `place`. Later writes are visible only in the lab, and end with it.

        Raises NamespaceError.
        """
        layer = self.directory / "root" / f"layer-of{str(place).replace('/', '-')}"
        for name in ("upper", "work"):
            (layer / name).mkdir(parents=True)
        where = f"lowerdir={place},upperdir={layer}/upper,workdir={layer}/work"
        self.mount("-t", "overlay", "lab", "-o", where, place)

    def outside(self, path: Path) -> Path:
        """Return how a process outside reaches `path`, which is in the mount namespace."""
        return Path(f"/proc/{self.pid}/root{path}")

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a file in the mount namespace, and make its directories."""
        seen = self.outside(path)
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.write_text(text)
        seen.chmod(mode)

    def mount(self, *arguments: str | Path) -> None:
        """Run mount in the mount namespace. Raises NamespaceError."""
        done = self.run(["mount", *arguments])
        if done.returncode != 0:
            words = " ".join(map(str, arguments))
            raise NamespaceError(f"mount {words}: {done.stderr.strip()}")

    def enter(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command that runs `command` in the namespaces."""
        into = ["nsenter", f"--target={self.pid}", *self._kinds, f"--wd={_ROOT}"]
        return [*into, "--", *map(str, command)]

    def run(
        self, command: Sequence[str | Path], environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        inside, environ = self.enter(command), environment(environ)
        return subprocess.run(inside, env=environ, text=True, capture_output=True)

    def start(
        self,
        command: Sequence[str | Path],
        output: int | IO[str],
        errors: int | IO[str],
        environ: Mapping[str, str] | None = None,
    ) -> Inside:
        """Start a long-running process in the namespaces."""
        entering = subprocess.Popen(
            self.enter(command),
            env=environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        self._started.append(Inside(entering))
        return self._started[-1]

    def close(self) -> None:
        """Kill all processes of the namespaces and remove the directory. Idempotent."""
        assert self._holder.stdin is not None and self._holder.stdout is not None
        if not self._holder.stdin.closed:
            self._holder.stdin.close()
            self._holder.stdout.close()
        for process in self._started:
            # A stopped nsenter would not reap its child, and the namespace would remain with it.
            process.entering.send_signal(signal.SIGCONT)
        self._holder.wait(_END_S)
        for process in self._started:
            process.entering.wait(_END_S)
        if self.link is not None:
            network.remove(self.link.interface)  # the kernel would remove the link later


class Inside:
    """A process in the namespaces. The nsenter that started it waits for it outside."""

    def __init__(self, entering: subprocess.Popen[str]) -> None:
        self.entering = entering

    @property
    def running(self) -> bool:
        return self.entering.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, because nsenter forwards no signals.

        When the process stops, nsenter stops itself and does not see the process's exit. So nsenter
        gets SIGCONT, too.
        """
        for pid in children(self.entering.pid):
            with suppress(ProcessLookupError):  # the process has exited
                os.kill(pid, number)
        if number == signal.SIGCONT:
            self.entering.send_signal(number)

    def kill(self, number: int) -> None:
        """Signal the process, continue it if it is stopped, and wait for its exit."""
        self.signal(number)
        self.signal(signal.SIGCONT)
        self.entering.wait(_END_S)


def children(pid: int) -> list[int]:
    """Return the process IDs of the process's children; none if the process has exited."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment with sbin on PATH, where Debian's runc is. Some PATHs lack sbin."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return {**os.environ, "PATH": path, **(extra or {})}
