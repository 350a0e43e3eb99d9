"""Runs a command as a child that shares the terminal, and passes on its signals and exit status.
Also starts threads that never receive signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

# Signals that a user or a supervisor sends to this process. Signals from the terminal, marked
# SI_KERNEL, are not passed on: the kernel sends them to the child too.
FORWARDED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_SI_KERNEL: Final = 0x80


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    started: Callable[[int], None] = lambda _: None,
) -> int:
    """Run the command. The exit status follows the shell: 128 + N if signal N ended it.

    Calls `started` with the command's process number. Raises OSError if the command cannot be
    started.
    """
    waited = {*FORWARDED, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, sigwaitinfo would not get it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = os.posix_spawnp(
            command[0], [*command], environment, setsigmask=before, setsigdef=_IGNORED_BY_PYTHON
        )
        started(child)
        return _wait(child, waited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(child: int, waited: set[signal.Signals]) -> int:
    while True:
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif received.si_code != _SI_KERNEL:
            os.kill(child, received.si_signo)


def start_thread(target: Callable[..., None], *args: object) -> threading.Thread:
    """Start a daemon thread with all signals blocked, because the main thread handles them."""
    thread = threading.Thread(target=target, args=args, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
