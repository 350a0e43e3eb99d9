"""Measures the node agent on a real containerd: its latency and resource use while a thousand
containers are started one after the other.

Refused containers and new sessions of the agent are counted, because every NRI timeout causes a
refusal or a new session. Then the agent's memory and processor time are measured on an idle node
with fifty containers. Memory is the working set of the agent's control group, less container files.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Final

import psutil

from bench import Result
from bench.native import built
from lab.node import cgroups
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cgroups import MemoryGroup
from lab.node.cri import CriError, Process
from lab.node.lab import Lab

_GIB: Final = 1 << 30
_RUNNING: Final = 50


def _in_sequence(lab: Lab, count: int) -> tuple[Sequence[float], int]:
    """Run containers in turn. Return the milliseconds of each creation, and how many failed."""
    taken, failed = [], 0
    with lab.pod("many", lab.share({"main": [(0, _GIB, 1)]})) as pod:
        for _ in range(count):
            begun = time.perf_counter()
            try:
                container = pod.create("main", Process(PYTHON_IMAGE))
                taken.append((time.perf_counter() - begun) * 1e3)
                container.start()
                container.stop()
                container.remove()
            except CriError:
                failed += 1
    return taken, failed


def run(quick: bool) -> Result:
    built()
    # With this variable, each child would compile its modules, and keep the memory for that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    count, idle_s = (50, 20) if quick else (1000, 120)
    result = Result(("", "unit", "measured", "at most"))

    def row(name: str, about: str, unit: str, value: float, at_most: float | None = None) -> None:
        result.add(name, round(value, 2), at_most)
        goal = "" if at_most is None else f"{at_most:g}"
        result.rows.append((about, unit, f"{value:.2f}".removesuffix(".00"), goal))

    group = MemoryGroup(f"gpuslice-bench-{uuid.uuid4()}")
    with ExitStack() as stack:
        stack.callback(group.remove)
        lab = stack.enter_context(Lab([80 * _GIB]))
        lab.start_agent(limiter=cgroups.into(group.path))
        taken, failed = _in_sequence(lab, count)
        logged = r"request=CreateContainer outcome=adjusted duration_ms=([\d.]+)"
        hook_ms = [float(ms) for ms in re.findall(logged, lab.agent_log.read_text())]
        row("containers", f"{lab.version}: containers started and removed", "", len(taken))
        row("containers_failed", "of which failed", "", failed, 0)
        for name, what, ms in (
            ("create", "CRI CreateContainer", taken),
            ("hook", "the agent's part", hook_ms),
        ):
            row(f"{name}_p50_ms", f"{what}, p50", "ms", median(ms))
            row(f"{name}_p99_ms", f"{what}, p99", "ms", quantiles(ms, n=100)[98])
        row("hook_max_ms", "the longest (dropped at 2,000)", "ms", max(hook_ms))
        for number in range(_RUNNING):
            share = lab.share({"main": [(0, _GIB, 1)]})
            pod = stack.enter_context(lab.pod(f"held-{number}", share))
            pod.run("main", Process(PYTHON_IMAGE))
        agent = [psutil.Process(lab.agent_pid)]
        agent += agent[0].children(recursive=True)
        before_s = sum(sum(one.cpu_times()[:2]) for one in agent)
        begun_s = time.monotonic()
        time.sleep(idle_s)
        spent_s = sum(sum(one.cpu_times()[:2]) for one in agent) - before_s
        idle_percent = 100 * spent_s / (time.monotonic() - begun_s)
        # The containers' files on tmpfs are charged to the agent's control group.
        run_dir = lab.namespace.outside(lab.run_dir)
        found = [os.statvfs(entry) for entry in os.scandir(run_dir) if entry.is_dir()]
        files_bytes = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found)
        working_set_mib = (group.working_set_bytes - files_bytes) / (1 << 20)
        about = f"agent with {_RUNNING} containers, working set without their files"
        row("agent_working_set_mib", about, "MiB", working_set_mib, 64)
        kib = files_bytes / 1024 / _RUNNING
        row("files_kib_per_container", "files of a container with one GPU", "KiB", kib)
        row("agent_idle_percent", f"agent, {idle_s} s of nothing", "% core", idle_percent, 1)
        row("sessions_lost", "sessions of the agent lost", "", lab.times_ready() - 1, 0)
    return result
