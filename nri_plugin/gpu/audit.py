"""The audit: whether containers hold more of a GPU than they were given, or escape their limit.

It judges each sample of measuring.py from outside: NVML's list of processes, joined with the grants
by control group, and what /proc shows of the processes. What is seen in two looks in a row is a
finding, which is reported once per container by the log and an event, and by a metric. Nothing else
is done. What cannot be read, or has no figure in NVML, is no finding.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.gpu.answers import Usage
from gpuslice.kube.log_lines import Line
from nri_plugin.gpu.container_processes import ContainerProcesses, Process
from nri_plugin.metrics import Metrics, Series, container_labels
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.notices import Notice, Notices
from nri_plugin.policy.plan import GRANT, ContainerPlan

_LOG: Final = logging.getLogger(__name__)

_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")
_PLACES: Final = (*names.CONTAINER_PRELOADS, names.CONTAINER_DIR, names.CONTAINER_LIBRARY, GRANT)
"""Paths in a container that must show our files."""
_ID_SHOWN: Final = 12
_NAMED_MAX: Final = 3


class Finding(StrEnum):
    """The values are those of the metric's label."""

    OVER_GRANT = "over_grant"
    NO_LIBRARY = "no_library"
    COVERED = "covered"
    NO_SHARE = "no_share"


Subject = tuple[str, str, str]
"""Namespace, pod and container, as in the labels of metrics."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What one look shows. what: identifies it in the next look. hold: None without a grant."""

    subject: Subject
    finding: Finding
    what: object
    text: str
    container_id: str
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What measuring.py knows. owners: the containers of the processes that NVML lists."""

    holds: Sequence[Hold]
    usage: Usage
    owners: Mapping[int, str]
    processes: ContainerProcesses


class Audit:
    """plan: returns a container's stored plan. named: returns the names of a container without a
    grant by its ID, None if they are not known."""

    def __init__(
        self,
        store: Path,
        metrics: Metrics,
        notices: Notices,
        plan: Callable[[str, str], ContainerPlan | None],
        named: Callable[[str], Subject | None] = lambda _: None,
        code_bytes: int = CODE_BYTES,
    ) -> None:
        self._code_bytes = code_bytes
        self._store, self._plan, self._named = store, plan, named
        self._libraries: set[str] = set()
        """Published while a container runs. A repair replaces a file that containers still map."""
        self._judge = Judge()
        self._series, self._looks = Series(metrics.audit_findings), metrics.audit_looks
        self._notices = notices

    def look(self, sample: Sample) -> Sequence[Suspicion]:
        """Return what this look shows. Blocks: run it in a thread."""
        by_id = {hold.container_id: hold for hold in sample.holds}
        seen: list[Suspicion] = []
        looked = sample.processes.look(by_id.keys(), sample.owners, cache(self._published))
        for container_id, processes in looked:
            hold = by_id[container_id]
            covered = list(self._covered(sample, hold, processes))
            if sample.processes.is_proven(container_id):
                seen += [*self._no_library(sample, hold, processes), *covered]
        return [*self._over_grant(sample), *self._no_share(sample), *seen]

    def report(self, sample: Sample, seen: Sequence[Suspicion]) -> bool:
        """Report what this look and the last one show. Return whether another look may confirm
        something: it should come soon. seen: by `look`."""
        live = {hold.container_id for hold in sample.holds}
        for each in self._judge.add(seen, live, sample.processes.missed):
            namespace, pod, container = each.subject
            fields = {"namespace": namespace, "pod": pod, "container": container}
            _LOG.warning(
                Line("audit finding", finding=each.finding.value, **fields, problem=each.text)
            )
            if each.hold is not None:
                where = f"{each.hold.container_key} {each.finding}"
                text = f'container "{each.hold.container}": {each.text}'
                reason = names.EVENT_LIMIT_BYPASSED
                self._notices.add(Notice(each.hold.pod, where, reason, text, action="Run"))
        self._series.update(self._judge.values)
        self._looks.inc()
        return self._judge.is_open

    def _published(self) -> set[str]:
        for file in self._store.glob(f"*/{names.FILE_LIBRARY}"):
            with suppress(OSError):
                there = file.stat()
                device = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}"
                self._libraries.add(f"{device} {there.st_ino}")
        return self._libraries

    def _covered(
        self, sample: Sample, hold: Hold, processes: Sequence[Process]
    ) -> Iterator[Suspicion]:
        """Yield the mount namespaces in which a file of ours is not at its path any more."""

        def places() -> Mapping[str, str]:
            plan = self._plan(hold.key, hold.container)
            return {at: plan.files[at] for at in _PLACES if at in plan.files} if plan else {}

        hidden = sample.processes.hidden(hold.container_id, processes, places)
        for namespace, path, pid in hidden:
            text = f"{_programs(sample, [pid])} does not see the limit's {path} any more"
            yield _of(hold, Finding.COVERED, (hold.container_id, namespace, path), text)

    def _no_library(
        self, sample: Sample, hold: Hold, processes: Iterable[Process]
    ) -> Iterator[Suspicion]:
        """Yield the processes that have a GPU and have not mapped our library."""
        for each in (each for each in processes if each.has_library is False):
            usage = sample.usage.items()
            held = [(uuid, of[each.pid]) for uuid, of in usage if of and each.pid in of]
            has = [f"holds {_size(size or 0)} of {uuid}" for uuid, size in held]
            has += [f"has {each.device} open"] if each.device else []
            if has:
                program = _programs(sample, [each.pid])
                text = f"{program} has not mapped the library and {', '.join(has)}"
                yield _of(hold, Finding.NO_LIBRARY, (each.pid, each.program), text)

    def _over_grant(self, sample: Sample) -> Iterator[Suspicion]:
        """Yield the grants beyond which processes hold memory. Code that a process loads after its
        last allocation may exceed the grant by `code_bytes`."""
        keys = {hold.container_id: hold.key for hold in sample.holds}
        pids = defaultdict[str, set[int]](set)
        for pid, owner in sample.owners.items():
            if owner in keys:
                pids[keys[owner]].add(pid)
        for hold in {hold.key: hold for hold in sample.holds if hold.key in pids}.values():
            for uuid, part in hold.parts.items():
                listed = sample.usage.get(uuid) or {}
                sizes = {pid: listed[pid] for pid in pids[hold.key] & listed.keys()}
                held_bytes = sum(size or 0 for size in sizes.values())
                if None in sizes.values():
                    continue
                if held_bytes > part.memory_bytes + len(sizes) * self._code_bytes:
                    text = (
                        f"{_programs(sample, sizes)} hold {_size(held_bytes)} of {uuid},"
                        f" {_size(part.memory_bytes)} are granted"
                    )
                    yield _of(hold, Finding.OVER_GRANT, (hold.key, uuid), text)

    def _no_share(self, sample: Sample) -> Iterator[Suspicion]:
        """Yield the containers without a grant that hold memory of GPUs that have shares."""
        own = sample.processes.own
        for uuid in {uuid for hold in sample.holds for uuid in hold.parts}:
            held = defaultdict[str, dict[int, int]](dict)
            for pid, size in (sample.usage.get(uuid) or {}).items():
                process = sample.processes.by_pid.get(pid)
                if process and size and pid not in sample.owners and process.cgroup != own:
                    for container_id in _CONTAINER_ID.findall(process.cgroup)[-1:]:
                        held[container_id][pid] = size
            for container_id, sizes in held.items():
                total = _size(sum(sizes.values()))
                text = f"{_programs(sample, sizes)} hold {total} of {uuid} without a share"
                subject = self._named(container_id) or ("", "", container_id[:_ID_SHOWN])
                what = container_id, uuid
                yield Suspicion(subject, Finding.NO_SHARE, what, text, container_id)


def _programs(sample: Sample, pids: Iterable[int]) -> str:
    ordered = sorted(pids)
    shown = [f"pid {pid} ({sample.processes.program(pid)})" for pid in ordered[:_NAMED_MAX]]
    more = len(ordered) - _NAMED_MAX
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _of(hold: Hold, finding: Finding, what: object, text: str) -> Suspicion:
    namespace, pod, container, _ = container_labels(hold.container_key, "")
    subject = namespace, pod, container
    return Suspicion(subject, finding, what, text, hold.container_id, hold)


@dataclass(eq=False)
class Judge:
    """Compares looks. is_open: the last look has a suspicion that the one before did not have."""

    is_open: bool = False
    _last: Mapping[tuple[Finding, object], str] = field(default_factory=dict)
    """The containers of the last look's suspicions."""
    _found: Mapping[tuple[str, Subject, Finding], float] = field(default_factory=dict)
    """By container, its names and finding: 1 in the last look, 0 earlier."""

    def add(
        self, seen: Sequence[Suspicion], live: Container[str], missed: Container[str] = ()
    ) -> Sequence[Suspicion]:
        """Add a look. Return its findings that are new. live: the containers with a grant. missed:
        those that this look did not read; their last look counts as the one before the next."""
        confirmed = [each for each in seen if (each.finding, each.what) in self._last]
        self.is_open = len(confirmed) < len(seen)
        kept_open = {key: of for key, of in self._last.items() if of in missed}
        self._last = kept_open | {(each.finding, each.what): each.container_id for each in seen}
        first = {
            (each.container_id, each.subject, each.finding): each for each in reversed(confirmed)
        }
        new = [each for key, each in first.items() if key not in self._found]
        kept = {
            key: value if key[0] in missed else 0.0
            for key, value in self._found.items()
            if key[0] in live
        }
        self._found = kept | dict.fromkeys(first, 1.0)
        return new

    @property
    def values(self) -> Mapping[tuple[str, ...], float]:
        """Return the metric's values. One name may have had several containers."""
        values: dict[tuple[str, ...], float] = {}
        for (_, subject, finding), value in self._found.items():
            labels = (*subject, finding.value)
            values[labels] = max(value, values.get(labels, 0.0))
        return values
