"""The demo's stage on this machine: a cluster of its own in a directory, removed with it.

The cluster ends with this process, even if it is killed (owner.py), unless `let_go` was called.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lab.cluster.command_line import gpus
from lab.cluster.directory import ClusterDirectory
from lab.cluster.marked_directory import DirectoryError
from lab.cluster.owner import Owner, OwnerError
from lab.demo import seed
from lab.demo.stage import AGAIN_S, Act, Holds, Output, StageError
from lab.demo.terminal import TerminalError, typed
from lab.node import network
from tools import kubernetes, programs
from tools.building import ProgramsError

_DO_S: Final = 120.0
_DONE: Final = "✓ "
"""The prefix of a successful step's line at the cluster's start (progress.py)."""


class Live:
    """One cluster. As a context manager it is removed at the end, unless `let_go` was called.
    Methods raise StageError."""

    def __init__(
        self, directory: ClusterDirectory, wait_built: Callable[[], object] = lambda: None
    ) -> None:
        self._wait_built = wait_built
        self._directory = directory
        self._owner: Owner | None = None
        self._kept = False
        self.kubectl = Path("kubectl")
        self._status = directory.read_status()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None and not self._kept and (left := self.down()):
            raise StageError("\n".join(["not removed:", *left]))

    def up(self, log: Callable[[str], object]) -> None:
        """Start the cluster; `log` gets a line for each completed step."""

        def step(line: str) -> None:
            if (done := line.rstrip()).startswith(_DONE):
                log(done.removeprefix(_DONE))

        with _explained():
            self._wait_built()
            programs.ensure()
            self.kubectl = kubernetes.ensure().kubectl
            with self._directory.changing():
                status = self._directory.read_status()
                if status.owner is not None:
                    raise StageError(
                        f"there is a cluster in {self._directory.path}: one that a demo has kept, "
                        f"or is at; make cluster-down{self._directory.advice} ends it"
                    )
                if status.exists:
                    self._directory.empty()
                self._owner = Owner(
                    self._directory, gpus(seed.GPUS), [seed.SCHEDULER], seed.DIALECTS
                )
                self._status = self._owner.wait_ready(step)

    def do(self, act: Act, holds: Holds | None = None, again_s: float = AGAIN_S) -> Output:
        """holds: the act is repeated, `again_s` after it ended, until this is true of its output,
        or a timeout."""
        begun = time.monotonic()
        with _explained():
            code, text = self._done(act)
            while holds is not None and not holds(text) and time.monotonic() - begun < _DO_S:
                time.sleep(again_s)
                code, text = self._done(act)
        return Output(code, text)

    def _done(self, act: Act) -> tuple[int, str]:
        command: list[str | Path] = [self.kubectl, *act.words[1:]]
        environ = {**network.unproxied(os.environ), "KUBECONFIG": str(self._directory.kubeconfig)}
        if act.typed:
            return typed(command, act.typed, environ, _DO_S)
        done = subprocess.run(
            command,
            input=act.given,
            env=environ,
            cwd=seed.ROOT,
            text=True,
            capture_output=True,
            timeout=_DO_S,
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    def down(self) -> list[str]:
        """End the cluster; return what is left of it. A ^C during this call has no effect."""
        asked = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in asked}
        try:
            with _explained(), self._directory.changing(make=False):
                if self._owner is not None:
                    self._owner.end()
                self._owner = None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._directory.left(self._status)

    @property
    def is_up(self) -> bool:
        return self._owner is not None and self._status.ready

    def let_go(self) -> None:
        """The cluster continues without this process."""
        assert self._owner is not None
        self._owner.let_go()
        self._kept = True


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (
        OwnerError,
        DirectoryError,
        ProgramsError,
        TerminalError,
        subprocess.SubprocessError,
    ) as e:
        raise StageError(str(e)) from e
