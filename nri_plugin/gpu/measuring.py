"""Measures each container's overhead once a second, and writes it into the grant; audits it.

NVML reports the GPU memory of each process, and control groups map processes to containers. The
overhead is this memory less the charge in the region (gpuslice/contract/overhead.py). Where NVML
has no value (some MIG drivers, a GPU that does not answer), the grant stays unchanged. The same
reads of regions supply compute_use.py. A worker thread reads files and /proc; no container waits.
While no container uses a GPU, samples are less frequent. The audit (audit.py) judges each sample,
and looks between two samples where they are far apart or it has something to confirm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract.overhead import PERIOD_S, WINDOW
from gpuslice.gpu.account import Account, Measured, Memory, RegionError, Use
from gpuslice.gpu.answers import Usage, Utilization, by_pid
from gpuslice.kube.log_lines import Line
from nri_plugin.gpu import audit
from nri_plugin.gpu.audit import Audit, Suspicion
from nri_plugin.gpu.compute_use import ComputeUse, Reading
from nri_plugin.gpu.container_processes import ContainerProcesses
from nri_plugin.gpu.memory_use import MemoryUse, Overheads
from nri_plugin.gpu.nvml_process import Answers, NvmlProcess
from nri_plugin.gpu.nvml_queries import PROCESSES
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.refusals import ChildError
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

_LOOK_S: Final = 1.3
"""The longest interval between two looks of the audit."""
_AGAIN_S: Final = 0.3
"""Interval after which a second look confirms what the first one showed."""
_UNUSED_PERIOD_S: Final = 4 * _LOOK_S
"""Interval after a sample that found neither processes of containers on a GPU nor new work. A look
that finds such a process ends it."""


@dataclass(eq=False)
class Measuring:
    """root: the run directory. holds: returns the running containers' ledger holds. nvml: shared
    with the inventory. deadline_s: limits the reading of files. now: a monotonic clock in seconds.
    """

    root: Path
    holds: Callable[[], Iterable[Hold]]
    nvml: NvmlProcess
    metrics: Metrics
    notices: Notices
    deadline_s: float = 5.0
    now: Callable[[], float] = time.monotonic
    proc: Path = Path("/proc")
    gpus: Callable[[], Iterable[Gpu]] = tuple
    """Returns the node's GPUs."""
    whole: Callable[[], Container[str]] = tuple
    """Returns the UUIDs of GPUs that pods hold whole."""
    audit: Audit | None = None
    pause_s: float = PERIOD_S
    """Seconds until the next sample is due."""
    _measured: dict[str, tuple[Account, Measured]] = field(default_factory=dict)
    _problem: str = ""
    _without_figure: int = 0
    _uses: Mapping[str, Mapping[str, Use]] = field(default_factory=dict)
    _suspects: bool = False
    _was_audited: bool = True

    def __post_init__(self) -> None:
        self._compute = ComputeUse(self.metrics, self.notices)
        self._memory = MemoryUse(self.metrics)
        self._processes = ContainerProcesses(self.proc)
        self._worker = Worker("measuring")
        self._sampled_s = self.now()
        self.metrics.sample_age.set_function(lambda: self.now() - self._sampled_s)

    async def run(self) -> None:
        while True:
            begun_s = self.now()
            await self.sample()
            left_s = max(self.pause_s - (self.now() - begun_s), _AGAIN_S)
            step_s = _AGAIN_S if self._suspects else _LOOK_S
            while left_s > 0:
                await asyncio.sleep(min(left_s, step_s))
                left_s, step_s = left_s - step_s, _LOOK_S
                if left_s > 0 and (await self.look() or self._suspects):
                    left_s = min(left_s, _AGAIN_S)

    async def look(self) -> bool:
        """Audit without a sample. Return whether processes of containers are on a GPU."""
        holds = tuple(hold for hold in self.holds() if hold.adjusted)
        sample = _Sample(self._processes, {hold.container_id: hold.key for hold in holds})
        usage: Usage = {}
        with suppress(ChildError, TimeoutError, ValueError):
            usage, _ = _by_gpu(await self.nvml.ask(PROCESSES))
        await self._judge(holds, sample, usage)
        return any(sample.pids.values())

    async def sample(self) -> None:
        """Take one sample. A failure is logged once, and the grants stay unchanged."""
        every_hold = tuple(self.holds())
        holds = tuple(hold for hold in every_hold if hold.adjusted)
        keys = {hold.container_id: hold.key for hold in holds}
        self._measured = {
            key: self._measured.get(key) or (Account(self.root / key), Measured())
            for key in keys.values()
        }
        if not keys:
            self.pause_s = PERIOD_S
            self._compute.add((), {})
            self._compute.utilization((), {}, {})
            self._memory.add(self.gpus(), every_hold, {}, {})
            self._show({})
            await self._judge((), _Sample(self._processes, {}), {})
            self._sampled_s = self.now()
            return
        sample = _Sample(self._processes, keys, self._measured)
        usage: Usage = {}
        utilized: Utilization = {}
        try:
            await self._worker.run(sample.begin, self.deadline_s)
            self._compute.add(holds, sample.readings)
            usage, utilized = _by_gpu(await self.nvml.ask(PROCESSES))
            overheads = await self._worker.run(partial(sample.end, usage), self.deadline_s)
        except (ChildError, OSError, ValueError) as error:
            self._log(str(error) or "the host's files could not be read in time")
            overheads, utilized = {key: {} for key in self._measured}, {}
        else:
            self._log(self._missing(overheads))
            self._sampled_s = self.now()
        finally:
            self._worker.post(sample.close)
        uses = {key: reading.gpus for key, reading in sample.readings.items()}
        unused = all(use is self._uses.get(key) for key, use in uses.items())
        self._uses = uses
        self.pause_s = _UNUSED_PERIOD_S if unused and not any(sample.pids.values()) else PERIOD_S
        self._compute.utilization(holds, utilized, sample.pids)
        violations = {key: measured.violations for key, (_, measured) in self._measured.items()}
        self._memory.add(self.gpus(), every_hold, sample.memories, violations)
        self._show(overheads, sample.strangers)
        await self._judge(holds, sample, usage)

    async def _judge(self, holds: Sequence[Hold], sample: _Sample, usage: Usage) -> None:
        """Audit what was just sampled."""
        if self.audit is None:
            return
        seen = audit.Sample(holds, usage, sample.owners, self._processes)
        looking = partial(sample.audited, self.audit, seen)
        try:
            suspicions = await self._worker.run(looking, self.deadline_s) if holds else ()
        except (OSError, TimeoutError) as error:
            log = _LOG.warning if self._was_audited else _LOG.debug
            log(Line("not audited", error=error))
            self._was_audited = False
            return
        self._was_audited = True
        self._suspects = self.audit.report(seen, suspicions)

    def _missing(self, overheads: Overheads) -> str:
        """Return the problem to log; "": none. A missing value becomes a problem after WINDOW
        samples, because NVML lists a new process one sample late."""
        keys = sorted(key for key, known in overheads.items() if None in known.values())
        self._without_figure = self._without_figure + 1 if keys else 0
        if self._without_figure < WINDOW:
            return self._problem if keys else ""
        return f"NVML has no figure for the processes of {', '.join(keys)}"

    def _show(
        self, by_key: Overheads, strangers: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """strangers: the control groups of other processes by GPU, of the GPUs that answered."""
        unknown = sum(not known or None in known.values() for known in by_key.values())
        self.metrics.not_measured.set(unknown)
        self._memory.show(by_key, strangers or {}, self.whole())

    def _log(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning(Line("the driver's own memory is not measured", error=problem))
        elif self._problem and not problem:
            _LOG.info(Line("the driver's own memory is measured again"))
        self._problem = problem


def _by_gpu(answers: Answers) -> tuple[Usage, Utilization]:
    """Return the memory use and utilization of each GPU that answered. Raises ValueError."""
    usage, utilized = {}, {}
    try:
        for line in answers.lines.values():
            if "uuid" in line:
                usage[line["uuid"]] = by_pid(line["memory"])
                utilized[line["uuid"]] = by_pid(line["utilization"])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"unreadable answer: {error!r}") from error
    return usage, utilized


@dataclass(eq=False)
class _Sample:
    """One sample's blocking work on files. keys: container ID -> key of the grant's files."""

    processes: ContainerProcesses
    keys: Mapping[str, str]
    measured: Mapping[str, tuple[Account, Measured]] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    """The use of compute by key of the grant's files."""
    pids: Mapping[str, set[int]] = field(default_factory=dict)
    """The processes that NVML lists, by key of their container's files."""
    memories: dict[str, Mapping[str, Memory]] = field(default_factory=dict)
    """The memory of each GPU by key of the grant's files."""
    strangers: Mapping[str, set[str]] = field(default_factory=dict)
    """The control groups of processes without a share of the GPU, by UUID."""
    owners: dict[int, str] = field(default_factory=dict)
    """The containers with a share of the processes that NVML lists."""
    _is_found: bool = False
    _files: ExitStack = field(default_factory=ExitStack)
    _begun: dict[str, Sequence[int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Read the charges and the use of compute. Called before the NVML query."""
        for key, (account, _) in self.measured.items():
            try:
                self._files.enter_context(account)
                self._begun[key] = account.charged_bytes()
                self.memories[key] = account.memory()
                self.readings[key] = Reading(time.monotonic_ns(), account.compute())
            except (OSError, RegionError) as error:
                _LOG.debug(Line("not measured", key=key, error=error))

    def end(self, usage: Usage) -> Overheads:
        """Read the charges again, and write the overheads. usage: the NVML query's result."""
        self._find_containers(usage)
        overheads: dict[str, Mapping[str, int | None]] = {key: {} for key in self.measured}
        for key, before in self._begun.items():
            account, measured = self.measured[key]
            try:
                overheads[key] = measured.add(account, before, usage, self.pids[key])
            except (OSError, RegionError) as error:
                _LOG.debug(Line("not measured", key=key, error=error))
        return overheads

    def close(self) -> None:
        self._files.close()

    def audited(self, auditor: Audit, seen: audit.Sample) -> Sequence[Suspicion]:
        self._find_containers(seen.usage)
        return auditor.look(seen)

    def _find_containers(self, usage: Usage) -> None:
        """Assign the processes that NVML lists to containers, once. Raises OSError."""
        if self._is_found:
            return
        listed = {pid for by_pid in usage.values() for pid in by_pid or ()}
        self.processes.find(self.keys.keys(), listed)
        self._is_found = True
        pids: dict[str, set[int]] = defaultdict(set)
        groups: dict[int, str] = {}
        for pid in listed & self.processes.by_pid.keys():
            process = self.processes.by_pid[pid]
            owner = process.container
            if owner is not None and owner in self.keys:
                self.owners[pid] = owner
                pids[self.keys[owner]].add(pid)
            elif process.cgroup not in (self.processes.own, ""):
                groups[pid] = process.cgroup
        self.pids = pids
        self.strangers = {
            uuid: {groups[pid] for pid in by_pid if pid in groups}
            for uuid, by_pid in usage.items()
            if by_pid is not None
        }
