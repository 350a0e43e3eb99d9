"""The node agent on a real containerd: latency and resource use over a thousand containers in
sequence.

Each container holds a share of a GPU, and is created, started and removed. An NRI timeout would
appear as a refused container or as a new session of the agent; both are counted. Then fifty
containers run while the node is otherwise idle. Memory and processor time of the agent and its
children are the kernel's own figures (psutil). The memory's goal is for the proportional set size,
which counts shared pages once, as the kubelet's working set of a pod does; the files of containers
come on top of that.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Final

import psutil

from bench import Result
from bench.native import built
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab

_GIB: Final = 1 << 30
_GPU: Final = 80 * _GIB
_RUNNING: Final = 50
_MIB: Final = 1 << 20
_AT_MOST: Final = {
    "containers_failed": 0.0,
    "sessions_lost": 0.0,
    "agent_pss_mib": 64.0,
    "agent_idle_percent": 1.0,
}


def _in_sequence(lab: Lab, count: int) -> tuple[Sequence[float], int]:
    """Milliseconds of each CRI CreateContainer, and the number of failures."""
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


def _hook_ms(lab: Lab) -> Sequence[float]:
    """The agent's processing time for each creation, from its log."""
    lines = re.findall(
        r"request=CreateContainer outcome=adjusted duration_ms=([\d.]+)", lab.agent_log.read_text()
    )
    return [float(each) for each in lines]


def _agent(lab: Lab) -> list[psutil.Process]:
    agent = psutil.Process(lab.agent_pid)
    return [agent, *agent.children(recursive=True)]


def run(quick: bool) -> Result:
    built()
    # Else each start of a child compiles its modules again, which takes 15 MiB.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    count, idle_s = (50, 20) if quick else (1000, 120)
    figures: dict[str, float] = {}
    with Lab([_GPU]) as lab, ExitStack() as stack:
        lab.start_agent()
        taken, failed = _in_sequence(lab, count)
        hook_ms = _hook_ms(lab)
        figures["containers"] = len(taken)
        figures["containers_failed"] = failed
        figures["create_p50_ms"] = round(median(taken), 2)
        figures["create_p99_ms"] = round(quantiles(taken, n=100)[98], 2)
        figures["hook_p50_ms"] = round(median(hook_ms), 2)
        figures["hook_p99_ms"] = round(quantiles(hook_ms, n=100)[98], 2)
        figures["hook_max_ms"] = round(max(hook_ms), 2)
        for number in range(_RUNNING):
            share = lab.share({"main": [(0, _GIB, 1)]})
            pod = stack.enter_context(lab.pod(f"held-{number}", share))
            pod.run("main", Process(PYTHON_IMAGE))
        agent = _agent(lab)
        before = [sum(one.cpu_times()[:2]) for one in agent]
        begun = time.monotonic()
        time.sleep(idle_s)
        spent_s = sum(sum(one.cpu_times()[:2]) for one in agent) - sum(before)
        percent = 100 * spent_s / (time.monotonic() - begun)
        memory = [one.memory_full_info() for one in agent]
        figures["agent_rss_mib"] = round(sum(one.rss for one in memory) / _MIB, 1)
        figures["agent_pss_mib"] = round(sum(one.pss for one in memory) / _MIB, 1)
        figures["agent_idle_percent"] = round(percent, 2)
        figures["sessions_lost"] = lab.times_ready() - 1
        version = lab.version
    rows = [
        (f"{version}: containers created, started, removed", "", f"{len(taken)}", ""),
        ("of which failed", "", f"{failed}", "0"),
        ("sessions of the agent lost", "", f"{figures['sessions_lost']:.0f}", "0"),
        *(
            (f"{what}, {rank}", "ms", f"{figures[f'{name}_{rank}_ms']:.2f}", "")
            for name, what in (("create", "CRI CreateContainer"), ("hook", "the agent's part"))
            for rank in ("p50", "p99")
        ),
        ("the agent's part, the longest (dropped at 2,000)", "ms", f"{max(hook_ms):.2f}", ""),
        (f"agent with {_RUNNING} containers, RSS", "MiB", f"{figures['agent_rss_mib']}", ""),
        (f"agent with {_RUNNING} containers, PSS", "MiB", f"{figures['agent_pss_mib']}", "64"),
        (f"agent, {idle_s} s of nothing", "% core", f"{figures['agent_idle_percent']}", "1"),
    ]
    return Result(figures, _AT_MOST, ("", "unit", "measured", "at most"), rows)
