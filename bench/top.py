"""Measures the time from the start of `gpuslice top` to its first frame, on an idle machine."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import termios
import time
from pathlib import Path
from statistics import median
from subprocess import Popen

from bench import Result
from bench.scheduling import fleets, say, stage
from lab.cluster.api import connected


def run(quick: bool) -> Result:
    result, size = Result(("", "measured", "goal")), fleets.Size(1_000, 2_000)
    with stage.control_plane() as plane:
        asyncio.run(_build(plane.kubeconfig(), size))
        seconds = [first_frame_s(plane.kubeconfig()) for _ in range(3 if quick else 12)]
    say(f"{', '.join(f'{each:.2f}' for each in seconds)} s; load average {os.getloadavg()}")
    for name, value, goal in (("median", median(seconds), None), ("worst", max(seconds), 1.5)):
        result.add(f"first_frame_{name}_s", value, goal)
        result.row(f"first frame, {name}", f"{value:.2f} s", f"<= {goal} s" if goal else "")
    return result


async def _build(kubeconfig: Path, size: fleets.Size) -> None:
    async with connected(kubeconfig) as kube:
        await stage.build(kube, size.shape.all_nodes())
        await stage.fill(kube, size)


def first_frame_s(kubeconfig: Path) -> float:
    """Run the command on a terminal of its own, and end it after the frame's last line."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, 120))
    command = (sys.executable, "-m", "gpuslice", "top", "--kubeconfig", str(kubeconfig))
    environment, shown, begun_s = {**os.environ, "TERM": "xterm"}, b"", time.monotonic()
    with Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as top:
        os.close(terminal)
        while b" more nodes: " not in shown:
            shown += os.read(screen, 1 << 16)
        taken_s = time.monotonic() - begun_s
        top.kill()
    os.close(screen)
    return taken_s
