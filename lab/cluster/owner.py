"""The process that owns a cluster, and its starter's handle.

The owner process starts the cluster (running.py), writes the state that
`ClusterDirectory.read_status` reads, restarts parts that exit, and removes everything when it ends.
Until the starter calls `let_go`, the owner process also ends when the starter ends or is killed. So
no forgotten cluster remains.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

from lab import tail
from lab.cluster.directory import MARK, ClusterDirectory, ClusterStatus, DirectoryError
from lab.cluster.product import VALUES, Wanted
from lab.cluster.running import FAILURES, NODE, Cluster
from lab.node import network
from tools.building import ProgramsError

_ROOT: Final = Path(__file__).resolve().parents[2]
_POLL_S: Final = 0.5
_LET_GO: Final = b"go on alone"


class OwnerError(RuntimeError):
    """The cluster does not start. The text ends with the owner process's output."""


class Owner:
    """The owner process of a cluster. It ends with this process unless `let_go` was called."""

    def __init__(self, directory: ClusterDirectory, wanted: Wanted) -> None:
        self._directory = directory
        asked = json.dumps(asdict(wanted))
        command = [sys.executable, "-m", "lab.cluster.owner", str(directory.path), asked]
        with directory.log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env={**network.unproxied(os.environ), MARK: str(directory.path)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self, print_line: Callable[[str], object]) -> ClusterStatus:
        """Return when the cluster runs. Meanwhile call `print_line` with each line of its owner.

        Raises OwnerError if it does not start. The cluster is removed after any exception.
        """
        try:
            deadline = time.monotonic() + 300.0
            with self._directory.log.open() as log:
                while not (status := self._directory.read_status()).ready:
                    for line in log:
                        print_line(line)
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise OwnerError("the cluster does not come up")
                    time.sleep(_POLL_S / 5)
                for line in log:
                    print_line(line)
            if status.problems:
                raise OwnerError(f"the cluster came up broken: {'; '.join(status.problems)}")
            return status
        except BaseException as error:
            output = tail(self._directory.log)
            self.end()
            if isinstance(error, OwnerError):
                raise OwnerError(f"{error}:\n{output}") from error
            raise

    def end(self) -> None:
        """End the owner process with all that it owns. Raises DirectoryError."""
        assert self._process.stdin is not None
        self._directory.clear()
        self._process.stdin.close()
        self._process.wait()

    def let_go(self) -> None:
        """Let the cluster continue after this process ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(_LET_GO)
        self._process.stdin.close()


# --- the owner itself ----------------------------------------------------------------------------


def _end(number: int, frame: FrameType | None) -> None:
    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, signal.SIG_IGN)
    raise SystemExit


def _wait_for_starter(has_ended: threading.Event) -> None:
    """Wait for `let_go` or the starter's end. At the starter's end, end this process."""
    output = b""
    while more := os.read(sys.stdin.fileno(), len(_LET_GO)):
        output += more
    if output != _LET_GO:
        has_ended.set()
        os.kill(os.getpid(), signal.SIGTERM)


def own(directory: ClusterDirectory, wanted: Wanted) -> None:
    """Start the cluster and keep it running until a signal ends this process."""
    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    directory.own()
    starter_ended = threading.Event()
    threading.Thread(target=_wait_for_starter, args=(starter_ended,), daemon=True).start()
    try:
        with Cluster(wanted, directory.path) as cluster:
            _keep(directory, cluster, wanted)
    finally:
        if starter_ended.is_set():  # the starter cannot remove the directory
            directory.remove()


def _keep(directory: ClusterDirectory, cluster: Cluster, wanted: Wanted) -> None:
    shutil.copy2(cluster.plane.kubeconfig(), directory.kubeconfig)
    written: dict[str, Any] = {}
    while True:
        link = cluster.lab.namespace.link
        state = {
            **asdict(wanted),
            "ready": True,
            "directory": str(cluster.lab.directory),
            "containerd": str(cluster.lab.namespace.outside(cluster.lab.containerd.paths.socket)),
            "interface": link.interface if link else None,
            "kubectl": str(cluster.plane.programs.kubectl),
            "kubeconfig": str(directory.kubeconfig),
            "node": NODE,
            "pages": cluster.pages() if wanted.served is not None else {},
            "values": str(cluster.lab.directory / VALUES),
            "parts": {
                part.name: {"pid": part.pid(), "restarts": part.restarts} for part in cluster.parts
            },
        }
        if state != written:
            directory.write(state)
            written = state
        time.sleep(_POLL_S)
        for name in cluster.restart_exited_parts():
            sys.stderr.write(f"{name} had ended: started again\n")
            sys.stderr.flush()


if __name__ == "__main__":
    try:
        own(ClusterDirectory(Path(sys.argv[1])), Wanted(**json.loads(sys.argv[2])))
    except (DirectoryError, ProgramsError, *FAILURES) as error:
        sys.exit(f"cluster: {error}")
