"""Uses up this process's file descriptors, for tests of what happens then."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Keep this process from opening any file inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while True:
            try:
                stack.callback(os.close, os.dup(0))
            except OSError:
                break
        yield
