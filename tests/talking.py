"""Processes that answer each line with a line. They are always killed at the end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.support import ROOT

_DEADLINE_S: Final = 60.0
TALKER: Final = (sys.executable, "-m", "tests.talker")
UNPAUSING: Final = (*TALKER, "--unpausing")


class Talk:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def comm(self) -> str:
        return Path(f"/proc/{self.pid}/comm").read_text().strip()

    def answer(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], _DEADLINE_S)[0], "stuck"
        line = self._process.stdout.readline()
        assert line, f"ended: {self._process.wait()}"
        return line.strip()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.answer()

    def do(self, line: str) -> None:
        """Send the line to a program that answers "done" once it has executed the line."""
        assert self.ask(line) == "done", line

    def kill(self) -> None:
        """Kill the process with -9, and wait for its exit."""
        self._process.kill()
        self._process.wait()

    def stops(self, line: str) -> bool:
        """Send the line. Return True if the process stopped itself, and False if it answered."""
        self.send(line)
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], 0.005)[0]:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid:
                assert os.WIFSTOPPED(status), f"ended: {status}"
                return True
        self.answer()
        return False

    def end(self, line: str) -> None:
        """Send the command that ends the process, and wait for its exit."""
        self.send(line)
        self._process.wait()


@contextmanager
def talking(
    command: Sequence[str | Path], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> Iterator[Talk]:
    """Start the program in an environment, and wait until it reports that it is ready."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        pass_fds=pass_fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        talk = Talk(running)
        try:
            assert talk.answer() == "ready"
            yield talk
        finally:
            running.kill()
            running.communicate()


@contextmanager
def talkers(*environments: Mapping[str, str]) -> Iterator[list[Talk]]:
    """Start a TALKER in each environment."""
    with ExitStack() as stack:
        yield [stack.enter_context(talking(TALKER, each)) for each in environments]
