"""Runs the arbiter as a child of `shim run`, beside the program.

nri_plugin/gpu/arbiter_process.py does the same for the node agent.

A thread reads the child's heartbeat, and kills a child that sends none. When a child exits, the
thread starts the next one, with backoff. The children's standard input is a pipe. When this process
ends, the pipe closes, and therefore the child ends too.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from shim import launch

_COMMAND: Final = (sys.executable, "-m", "shim", "arbiter", "--heartbeat")
_POLL_S: Final = 4 * names.HEARTBEAT_S
_START_POLLS: Final = 15
"""Polls that may pass before the first heartbeat, because Python may start slowly."""
_MISSED_POLLS: Final = 2
"""Polls without a heartbeat before the child is killed. One such poll proves nothing: after a halt
of the machine the poll times out before the child has written again."""
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 5.0


@contextmanager
def arbiting(parent: Path, prefix: str) -> Iterator[None]:
    """Keep an arbiter running for the directories in `parent` whose names begin with `prefix`."""
    stdin, hold = os.pipe()
    ended = threading.Event()
    command = (*_COMMAND, "--prefix", prefix, str(parent))
    thread = launch.start_thread(_serve, command, stdin, ended)
    try:
        yield
    finally:
        ended.set()
        os.close(hold)
        thread.join(2 * _POLL_S)
        os.close(stdin)


def _serve(command: Sequence[str], stdin: int, ended: threading.Event) -> None:
    pause_s = _FIRST_RETRY_S
    while not ended.is_set():
        since_s = time.monotonic()
        # The child gets a session of its own, so that signals of the terminal do not reach it.
        with subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True
        ) as child:
            assert child.stdout is not None
            _follow(child.stdout.fileno(), ended)
            child.kill()
        if time.monotonic() - since_s >= _LAST_RETRY_S:
            pause_s = _FIRST_RETRY_S
        ended.wait(pause_s)
        pause_s = min(2 * pause_s, _LAST_RETRY_S)


def _follow(heartbeat: int, ended: threading.Event) -> None:
    """Return when the child exits or has no heartbeat."""
    misses, most = 0, _START_POLLS
    while misses < (1 if ended.is_set() else most):
        if not select.select([heartbeat], [], [], _POLL_S)[0]:
            misses += 1
        elif os.read(heartbeat, 64):
            misses, most = 0, _MISSED_POLLS
        else:
            return
