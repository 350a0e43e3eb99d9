"""Programs under `python -m shim run` on the simulated GPUs, with one arbiter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.shim.conftest import Host
from tests.support import ROOT

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(gpu_host: Host, tmp_path: Path) -> Iterator[Start]:
    """Start `shim run OPTIONS -- COMMAND`. A test's commands share a directory and an arbiter."""
    with ExitStack() as stack:

        def started(options: Sequence[str], *command: str | Path) -> subprocess.Popen[str]:
            run = [sys.executable, "-m", "shim", "run", "--gpu", "0", "--memory", "1500MiB"]
            process = subprocess.Popen(
                [*run, "--context-bytes", "300MiB", *options, "--", *command],
                cwd=ROOT,
                env={**gpu_host.environment(preload=False), "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield started
