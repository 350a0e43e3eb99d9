"""Programs under `python -m shim run` on the simulated GPUs, with one arbiter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.shim.conftest import Host
from tests.support import ROOT

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(gpu_host: Host, tmp_path: Path) -> Iterator[Start]:
    """Start `shim run OPTIONS -- COMMAND`. A test's commands share a directory and an arbiter. Each
    has its own bookings, because programs of a test's earlier try may still be running."""
    bookings = (tmp_path / f"bookings-{number}" for number in count())
    with ExitStack() as stack:

        def started(options: Sequence[str], *command: str | Path) -> subprocess.Popen[str]:
            run = [sys.executable, "-m", "shim", "run", "--gpu", "0", "--memory", "1500MiB"]
            process = subprocess.Popen(
                [*run, "--context-bytes", "300MiB", *options, "--", *command],
                cwd=ROOT,
                env={
                    **gpu_host.environment(preload=False),
                    names.ENV_BOOKINGS: str(next(bookings)),
                    "TMPDIR": str(tmp_path),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started
