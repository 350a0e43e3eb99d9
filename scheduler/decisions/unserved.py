"""Finds pods that request a share and that no scheduler serves, so that an Event says so.

A scheduler that serves a pod binds it or sets its condition PodScheduled. The API server sets this
condition only for scheduling gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpuslice.contract.dialects import DIALECTS, SCHEDULER_NAMES
from gpuslice.kube.fields import Json, at, objects
from scheduler.dialects.reading import RequestError
from scheduler.kubernetes.facts import Problem
from scheduler.kubernetes.requests import pending, read

AFTER_S: Final = 60.0
_STOCK: Final = "default-scheduler"


class Unserved:
    """served: the schedulerNames that gpuslice serves. clock: monotonic seconds."""

    def __init__(self, served: Sequence[str], clock: Callable[[], float]) -> None:
        self._served = served
        self._clock = clock
        self._found: dict[str, tuple[float, Problem]] = {}
        """By UID, the time of the first observation, and the text for an Event."""

    def observe(self, uid: str, raw: Json) -> None:
        """Read a pod without a node."""
        scheduler = str(at(raw, "spec").get("schedulerName") or _STOCK)
        if scheduler == _STOCK or scheduler in self._served:
            return
        if _was_tried(raw):
            self.remove(uid)
        elif uid not in self._found and _requests_share(raw, scheduler):
            text = self._text(scheduler)
            self._found[uid] = self._clock(), Problem("", pending(raw).pod_key, text, uid)

    def remove(self, uid: str) -> None:
        self._found.pop(uid, None)

    def problems(self) -> Sequence[Problem]:
        """Return a problem for each pod that no scheduler has tried for AFTER_S."""
        now_s = self._clock()
        return [each for since_s, each in self._found.values() if now_s - since_s >= AFTER_S]

    def _text(self, scheduler: str) -> str:
        switch = next((d.switch for d in DIALECTS if d.scheduler_name == scheduler), "")
        how = f"set {switch} to true" if switch else "add it to schedulerNames"
        may = f"; to serve it {how} in gpuslice's chart" if scheduler in SCHEDULER_NAMES else ""
        return (
            f"spec.schedulerName: invalid value {scheduler}: must be a name that a scheduler"
            f" serves, but none has tried the pod; gpuslice serves {', '.join(self._served)}{may}"
        )


def _was_tried(raw: Json) -> bool:
    return bool(at(raw, "spec").get("schedulingGates")) or any(
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
