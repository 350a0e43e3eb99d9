"""The command `python -m shim arbiter`. It imports neither NVML nor a driver, because the arbiter's
memory on each node counts against the agent's pod."""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from shim.arbiter import process

ABOUT: Final = "divide each GPU's time among the containers of a directory"
DESCRIPTION: Final = (
    f"{ABOUT[0].upper()}{ABOUT[1:]}, until standard input ends. If several arbiters serve"
    " one directory, one works and the others wait to take over."
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m shim arbiter", description=DESCRIPTION)
    configure(parser)
    return run(parser.parse_args(arguments))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix",
        default="",
        metavar="TEXT",
        help="only directories whose name begins with TEXT (default: all)",
    )
    parser.add_argument(
        "--heartbeat",
        action="store_true",
        help="write a byte to standard output twice a second: s while it serves the directory,"
        " w while it waits for another arbiter",
    )
    parser.add_argument(
        "parent", type=Path, metavar="DIR", help="holds the containers' directories"
    )


def run(options: argparse.Namespace) -> int:
    ends = select.poll()
    ends.register(sys.stdin, select.POLLIN)
    # `shim run` starts the arbiter from a thread that blocks all signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    arbiter = process.Arbiter(options.parent, options.prefix, _report)
    alive = _Heartbeat() if options.heartbeat else lambda _: None
    process.run(arbiter, lambda: bool(ends.poll(0)), alive)
    return 0


def _report(text: str) -> None:
    sys.stderr.write(f"{names.ARBITER_REPORTS}{text}\n")
    sys.stderr.flush()


class _Heartbeat:
    """Writes heartbeats to standard output, without blocking if the reader is stopped."""

    def __init__(self) -> None:
        os.set_blocking(sys.stdout.fileno(), False)
        self._due_s = 0.0

    def __call__(self, serving: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + names.HEARTBEAT_S
        beat = names.HEARTBEAT_SERVING if serving else names.HEARTBEAT_WAITING
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(sys.stdout.fileno(), beat)
