"""Measures the node agent on a real containerd: its latency and resource use while a thousand
containers are started one after the other.

Refused containers and new sessions of the agent are counted, because every NRI timeout causes a
refusal or a new session. Then the memory and processor time of the agent with its audit, and of its
arbiter, are measured on a node with fifty containers of three processes each. Idle: none uses a
GPU. Busy: in each a program holds all of its memory. Memory is the working set of the agent's
control group, less container files.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import psutil

from bench import Result
from bench.native import built
from lab import pages
from lab.node import cgroups
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cgroups import MemoryGroup
from lab.node.cri import Container, CriError, Process
from lab.node.lab import CLUSTER_FILES, Lab

_GIB: Final = 1 << 30
_RUNNING: Final = 50
_SETTLES_S: Final = 10
_THREE: Final = Process(PYTHON_IMAGE, ["sh", "-c", "sleep 1000000 & sleep 1000000 & wait"])
_GOALS: Final = {"idle": 0.8, "busy": 2.0}
"""Percent of a core that the agent and the arbiter may take together."""


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


def _measured(lab: Lab, seconds: int) -> tuple[float, float, float]:
    """Return the percent of a core that the agent with its NVML process takes, the same of the
    arbiter, and the milliseconds of a look, with the samples of its thread, the busiest."""

    def spent() -> Sequence[float]:
        times = (sum(sum(each.cpu_times()[:2]) for each in part) for part in (others, arbiter))
        tasks = Path(f"/proc/{agent.pid}/task").iterdir()
        threads = sorted(each for each in tasks if each.name != str(agent.pid))
        ns = (int((each / "schedstat").read_text().split()[0]) for each in threads)
        return (time.monotonic(), *times, *(each / 1e9 for each in ns))

    def looks() -> float:
        page = pages.get(lab.agent_http, "/metrics")[1]
        return sum(map(float, re.findall(r"^gpuslice_audit_looks_total (.+)$", page, re.MULTILINE)))

    agent = psutil.Process(lab.agent_pid)
    children = agent.children(recursive=True)
    arbiter = [each for each in children if "arbiter" in each.cmdline()]
    others = [agent, *(each for each in children if each not in arbiter)]
    # The page of metrics is not read meanwhile, because that takes as long as some looks.
    looked, before = looks(), spent()
    time.sleep(seconds)
    took_s, *took = (b - a for a, b in zip(before, spent(), strict=True))
    return 100 * took[0] / took_s, 100 * took[1] / took_s, 1e3 * max(took[2:]) / (looks() - looked)


def _hold(containers: Sequence[Container]) -> None:
    """Let a program in each container hold its memory of the GPU."""
    for container in containers:
        done = container.exec(["sh", "-c", "cuda-probe hold >/tmp/out 2>&1 &"])
        if done.code != 0:
            raise RuntimeError(f"cuda-probe: {done.err}")


def run(quick: bool) -> Result:
    built("cuda-load", "cuda-probe")
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
        lab = stack.enter_context(Lab([80 * _GIB], CLUSTER_FILES))
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
        containers = []
        for number in range(_RUNNING):
            share = lab.share({"main": [(0, _GIB, 1)]})
            pod = stack.enter_context(lab.pod(f"held-{number}", share))
            containers.append(pod.run("main", _THREE))
        for state, goal in _GOALS.items():
            time.sleep(_SETTLES_S)
            agent, arbiter, look_ms = _measured(lab, idle_s)
            about = f"{state}, {_RUNNING} containers, {idle_s} s"
            row(f"agent_{state}_percent", f"{about}: agent with audit", "% core", agent)
            row(f"arbiter_{state}_percent", f"{about}: arbiter", "% core", arbiter)
            row(f"{state}_percent", f"{about}: together", "% core", agent + arbiter, goal)
            row(f"look_{state}_ms", f"{about}: a look, with samples", "ms", look_ms)
            if state == "idle":
                _hold(containers)
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        row("processes", f"processes of the machine (load {load})", "", len(psutil.pids()))
        # The containers' files on tmpfs are charged to the agent's control group.
        run_dir = lab.namespace.outside(lab.run_dir)
        found = [os.statvfs(entry) for entry in os.scandir(run_dir) if entry.is_dir()]
        files_bytes = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in found)
        working_set_mib = (group.working_set_bytes - files_bytes) / (1 << 20)
        about = f"agent with {_RUNNING} containers, working set without their files"
        row("agent_working_set_mib", about, "MiB", working_set_mib, 64)
        kib = files_bytes / 1024 / _RUNNING
        row("files_kib_per_container", "files of a container with one GPU", "KiB", kib)
        row("sessions_lost", "sessions of the agent lost", "", lab.times_ready() - 1, 0)
    return result
