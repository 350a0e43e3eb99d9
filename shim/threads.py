"""Threads beside a program that `shim run` started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def start(target: Callable[..., None], *args: object) -> threading.Thread:
    """Start a daemon thread with all signals blocked: the main thread handles them."""
    thread = threading.Thread(target=target, args=args, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
