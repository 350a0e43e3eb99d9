"""The cluster on which the demo runs, in a directory on this machine.

The cluster ends when this process ends or is killed (owner.py), unless `let_go` was called.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab.cluster.directory import ClusterDirectory, DirectoryError
from lab.cluster.owner import Owner, OwnerError
from lab.cluster.product import Wanted
from lab.demo import seed
from lab.node import network
from tools import kubernetes, programs
from tools.building import ProgramsError

_DO_S: Final = 120.0
_DONE: Final = "✓ "
"""The prefix of a successful step's line in the output of a starting cluster (progress.py)."""


class Act(NamedTuple):
    """One command of kubectl. given: its standard input."""

    words: tuple[str, ...]
    given: str = ""

    @property
    def shown(self) -> str:
        return f"$ kubectl {' '.join(self.words)}"


def kubectl(*words: str, given: str = "") -> Act:
    return Act(words, given)


class Output(NamedTuple):
    """code: the exit status of an act, 0 for success. text: its output."""

    code: int
    text: str


class StageError(RuntimeError):
    """kubectl or the cluster cannot be started. The text has the reason."""


def probed(text: str) -> dict[str, Any]:
    """Return the object on cuda-probe's line of the output."""
    line = re.search(r'^\{"driver".*\}$', text, re.MULTILINE)
    if line is None:
        raise StageError(f"no line of cuda-probe: {text!r}")
    found: dict[str, Any] = json.loads(line[0])
    return found


class Live:
    """One cluster. As a context manager it removes the cluster at the end, unless `let_go` was
    called. Methods raise StageError."""

    def __init__(self, directory: ClusterDirectory, wait_built: Callable[[], None] | None) -> None:
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
        """Start the cluster. Call `log` with each completed step."""

        def step(line: str) -> None:
            if (done := line.rstrip()).startswith(_DONE):
                log(done.removeprefix(_DONE))

        with _explained():
            if self._wait_built is not None:
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
                wanted = Wanted(seed.GPUS, [seed.SCHEDULER], seed.DIALECTS)
                self._owner = Owner(self._directory, wanted)
                self._status = self._owner.wait_ready(step)

    def do(
        self, act: Act, holds: Callable[[str], bool] | None = None, again_s: float = 0.1
    ) -> Output:
        """Run kubectl and return its output. holds: a condition on the output. If given, repeat the
        act after pauses of `again_s` until the condition holds, or until a timeout."""
        begun = time.monotonic()
        with _explained():
            output = self._done(act)
            while holds is not None and not holds(output.text) and time.monotonic() - begun < _DO_S:
                time.sleep(again_s)
                output = self._done(act)
        return output

    def _done(self, act: Act) -> Output:
        done = subprocess.run(
            [self.kubectl, *act.words],
            input=act.given,
            env={**network.unproxied(os.environ), "KUBECONFIG": str(self._directory.kubeconfig)},
            cwd=seed.ROOT,
            text=True,
            capture_output=True,
            timeout=_DO_S,
        )
        return Output(done.returncode, done.stderr if done.returncode else done.stdout)

    def down(self) -> list[str]:
        """End the cluster; return what is left of it. ^C has no effect during this call."""
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
        """Let the cluster continue after this process ends."""
        assert self._owner is not None
        self._owner.let_go()
        self._kept = True


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (OwnerError, DirectoryError, ProgramsError, subprocess.SubprocessError) as error:
        raise StageError(str(error)) from error
