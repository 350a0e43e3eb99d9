"""Rows of the fault matrix for the driver's memory limit, on a simulated driver 615.

The driver's limit holds for programs that do not load the library, too. After each fault a program
that contains the driver must get the grant and no more. During the fault at least the library's
limit must be in force, which the rig's probe shows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.faults import outcome
from bench.faults.cases import Event, Strike
from bench.faults.outcome import Kind, Outcome
from bench.faults.rig import _CONTAINER, _GRANT, Injection, Rig
from lab.node.cri import Container
from lab.node.lab import DRIVER_LIMITS, Lab
from lab.node.namespace import children

_HOUR_NS: Final = 3600 * 10**9
_WITHIN_S: Final = 30.0
_NVML: Final = "nri_plugin.gpu.nvml"


class LimitsRig(Rig):
    """static: path of a probe that contains the driver."""

    def __init__(self, lab: Lab, static: str, **more: Any) -> None:
        super().__init__(lab, options=DRIVER_LIMITS, **more)
        self._static = static

    def _probe(self, container: Container) -> Outcome:
        """Probe the library's limit, then wait for the driver's, and probe that one."""
        library, deadline_s = super()._probe(container), time.monotonic() + _WITHIN_S
        while library.kind is Kind.LIMITED:
            done = container.exec([self._static])
            driver = outcome.inside(["/dev/simgpu"], json.loads(done.out), _GRANT)
            if driver.kind is Kind.LIMITED or time.monotonic() > deadline_s:
                return driver
            if not self._lab.agent_running:
                self._start_agent()
        return library

    def hangs(self) -> list[Outcome]:
        """Let NVML's call hang. Without the driver's limit only the library's is probed."""
        self._latency(_HOUR_NS)
        try:
            with self._pod("hangs") as pod:
                return [super()._probe(pod.run(_CONTAINER, self._process))]
        finally:
            self._latency(0)
            self._lab.stop_agent(signal.SIGKILL)

    def raised(self) -> list[Outcome]:
        """Raise the limit from outside, and let the agent look again."""
        with self._pod("raised") as pod:
            container = pod.run(_CONTAINER, self._process)
            self._lab.memory_limits(container, 40 << 10)
            library = super()._probe(container)
            self._end_nvml()
            return [library, self._probe(container)]

    def reloaded(self) -> list[Outcome]:
        """Clear the limit, as a reload of the driver does, while NVML's process ends."""
        with self._pod("reloaded") as pod:
            container = pod.run(_CONTAINER, self._process)
            self._lab.memory_limits(container, sys.maxsize)
            self._end_nvml()
            return [self._probe(container)]

    def _end_nvml(self) -> None:
        for pid in children(self._lab.agent_pid):
            if _NVML in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)

    def _latency(self, duration_ns: int) -> None:
        command: list[str | Path] = [sys.executable, "-m", "simgpu", "fault"]
        command += ["--dir", self._lab.sim_dir, "--gpu", "0"]
        self._lab.namespace.run([*command, "latency", "LIMITS_SET", str(duration_ns)])


LIMITS: Final[Mapping[str, Injection]] = {
    "limit-killed": Injection(
        "killed between control group and limit", Strike.CRASH, (Event.START,)
    ),
    "limit-after": Injection("killed after the limit", Strike.KILL_AFTER, (Event.START,)),
    "limit-hang": Injection("NVML hangs at the limit", scenes=[LimitsRig.hangs]),
    "limit-raised": Injection("limit raised from outside", scenes=[LimitsRig.raised]),
    "limit-reload": Injection("limits lost by a reload", scenes=[LimitsRig.reloaded]),
}
