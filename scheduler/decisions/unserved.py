"""Finds pods that request a share and that no scheduler serves, so that an Event says so.

A scheduler that serves a pod binds it or sets its condition PodScheduled. The API server sets this
condition only for scheduling gates. The condition stays if the scheduler is gone, for example after
gpuslice's dialect was turned off. Some schedulers set none while a group of pods waits. So for the
names of the dialects it counts whether a scheduler of that name is alive: a pod of it exists, or
this process saw it try a pod or bind one, and saw no pod of it end since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gpuslice.contract.dialects import DIALECTS, SCHEDULER_NAMES
from gpuslice.kube.fields import Json, at, objects, texts
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes.facts import Problem
from scheduler.kubernetes.requests import pending, read

AFTER_S: Final = 60.0
_STOCK: Final = "default-scheduler"
_OWN: Final = {SCHEDULER_NAMES[0]: SCHEDULER_NAMES[0]} | {
    text: dialect.scheduler_name for dialect in DIALECTS for text in dialect.own_scheduler
}
"""The schedulerName that another system's scheduler serves, by label value or image of its pod."""


class _Found(NamedTuple):
    since_s: float
    scheduler: str
    was_tried: bool
    problem: Problem


class Unserved:
    """served: the schedulerNames that gpuslice serves. clock: monotonic seconds."""

    def __init__(self, served: Sequence[str], clock: Callable[[], float]) -> None:
        self._served = served
        self._clock = clock
        self._began_s = clock()
        self._found: dict[str, _Found] = {}
        """By UID, pods that no scheduler may serve."""
        self._others: dict[str, str] = {}
        """By UID of another scheduler's pod, the schedulerName that it serves."""
        self._alive_until_s: dict[str, float] = {}
        """By schedulerName, when its scheduler counts as gone, unless a pod of it exists."""

    def observe(self, uid: str, raw: Json) -> None:
        """Read a pod without a node, or one that was bound."""
        if other := next((_OWN[text] for text in _identities(raw) if text in _OWN), ""):
            self._others[uid] = other
        scheduler = str(at(raw, "spec").get("schedulerName") or _STOCK)
        if scheduler == _STOCK or scheduler in self._served:
            return
        is_bound, was_tried = bool(at(raw, "spec").get("nodeName")), _was_tried(raw)
        known, now_s = self._found.get(uid), self._clock()
        if known and (is_bound or (was_tried and not known.was_tried)):
            del self._found[uid]
            # In the first minute, an earlier process of gpuslice may still serve the name.
            if now_s - self._began_s >= AFTER_S:
                self._alive_until_s[scheduler] = float("inf")
        if is_bound or _is_gated(raw) or (was_tried and scheduler not in SCHEDULER_NAMES):
            self._found.pop(uid, None)
        elif uid not in self._found and _requests_share(raw, scheduler):
            problem = Problem("", pending(raw).pod_key, self._text(scheduler), uid)
            self._found[uid] = _Found(now_s, scheduler, was_tried, problem)

    def remove(self, uid: str) -> None:
        self._found.pop(uid, None)
        if other := self._others.pop(uid, ""):
            self._alive_until_s[other] = self._clock() + AFTER_S

    def problems(self) -> Sequence[Problem]:
        """Return a problem for each pod that no scheduler has served for AFTER_S."""
        now_s = self._clock()
        alive = {name for name, until_s in self._alive_until_s.items() if now_s < until_s}
        alive.update(self._others.values())
        return [
            each.problem
            for each in self._found.values()
            if now_s - each.since_s >= AFTER_S and each.scheduler not in alive
        ]

    def _text(self, scheduler: str) -> str:
        switch = next((d.switch for d in DIALECTS if d.scheduler_name == scheduler), "")
        how = f"set {switch} to true" if switch else "add it to schedulerNames"
        may = f"; to serve it {how} in gpuslice's chart" if scheduler in SCHEDULER_NAMES else ""
        return (
            f"spec.schedulerName: invalid value {scheduler}: must be a name that a scheduler"
            f" serves, but none serves the pod; gpuslice serves {', '.join(self._served)}{may}"
        )


def _identities(raw: Json) -> Iterator[str]:
    """Yield the label values of the pod, and the names of its images with and without their last
    folder: the texts by which the chart also finds another scheduler."""
    yield from texts(at(raw, "metadata"), "labels").values()
    for container in objects(at(raw, "spec"), "containers"):
        *folders, name = str(container.get("image")).split("/")
        name = name.split("@")[0].split(":")[0]
        yield from (name, "/".join((*folders[-1:], name)))


def _is_gated(raw: Json) -> bool:
    return bool(at(raw, "spec").get("schedulingGates"))


def _was_tried(raw: Json) -> bool:
    return any(
        each.get("type") == "PodScheduled" and each.get("reason") != "SchedulingGated"
        for each in objects(at(raw, "status"), "conditions")
    )


def _requests_share(raw: Json, scheduler: str) -> bool:
    """Whether the pod requests a share of a dialect. nvidia.com/gpu alone counts in HAMi's pods."""
    own = frozenset(each.name for each in DIALECTS if each.scheduler_name == scheduler)
    try:
        return read(raw, own or None) is not None
    except RequestError:
        return True
