"""Removes pods whose grant is not to be had: bound to a card that was full, or not granted it.

The pods are judged by bounds.py and verification.py; this writes: an Event that says why, and a
deletion of just that pod as it was judged, by UID and version. Deletion and not eviction: a
disruption budget protects who was placed, and nobody else's card. A pod waits for no other's, and
what fails is tried again. Killed in between, the next agent goes on: the Event is the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contract import names
from contract.log_lines import Line
from kube.client import Kube, KubeError
from nri_plugin import objects
from nri_plugin.bounds import Bounds
from nri_plugin.errors import Refusal
from nri_plugin.events import Events
from nri_plugin.metrics import Metrics
from nri_plugin.objects import Bound

_LOG: Final = logging.getLogger(__name__)

_ANSWER_S: Final = 4.0
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_AT_ONCE: Final = 8
_CONFLICTS: Final = 3
"""Judged so often and found wanting each time, it goes as the pod that it is, at whatever version:
who changes it all the time gains nothing."""


@dataclass(frozen=True, slots=True)
class _Try:
    """Of a removal that has not worked: not before when, how long to wait after that. outdated: the
    version that was judged, and is not the pod's any more; conflicts: how often that was so."""

    not_before_s: float = 0.0
    wait_s: float = _FIRST_S
    outdated: str = ""
    conflicts: int = 0


class Removal:
    def __init__(self, kube: Kube, events: Events, bounds: Bounds, metrics: Metrics) -> None:
        self._kube = kube
        self._events = events
        self._bounds = bounds
        self._metrics = metrics
        self._told: set[str] = set()
        self._tries: dict[str, _Try] = {}
        self._removing: set[str] = set()

    def begin(self, group: asyncio.TaskGroup, doomed: Mapping[str, Refusal]) -> None:
        """Remove those of them whose turn it is; returns at once. doomed: all that must go, by
        UID, as it is known while the watch is heard."""
        now_s = asyncio.get_running_loop().time()
        self._told &= doomed.keys()
        self._tries = {uid: each for uid, each in self._tries.items() if uid in doomed}
        for uid, refusal in doomed.items():
            bound, last = self._bounds.pod(uid), self._tries.get(uid, _Try())
            if bound is None or bound.leaving or uid in self._removing:
                continue
            newer = last.outdated not in ("", bound.version)
            if len(self._removing) >= _AT_ONCE or (now_s < last.not_before_s and not newer):
                continue
            wait_s = min(2 * last.wait_s, _LONGEST_S)
            self._tries[uid] = _Try(now_s + last.wait_s, wait_s, conflicts=last.conflicts)
            self._removing.add(uid)
            group.create_task(self._remove(bound, refusal), name=f"remove {uid}")

    async def _remove(self, bound: Bound, refusal: Refusal) -> None:
        uid = bound.pod.uid
        try:
            if uid in self._told or await self._tell(bound, refusal):
                await self._delete(bound, self._tries.get(uid, _Try()).conflicts)
        finally:
            self._removing.discard(uid)

    async def _tell(self, bound: Bound, refusal: Refusal) -> bool:
        pod, text = bound.pod, f"gpuslice removes the pod: {refusal.text}"
        _LOG.error(
            Line(
                "pod removed",
                namespace=pod.namespace,
                pod=pod.name,
                uid=pod.uid,
                reason=refusal.reason.name,
                text=text,
            )
        )
        if not await self._events.tell(pod, names.EVENT_GRANT_REFUSED, "Remove", text):
            return False
        self._told.add(pod.uid)
        self._metrics.pods_removed.labels(refusal.reason.name).inc()
        return True

    async def _delete(self, bound: Bound, conflicts: int) -> None:
        pod, asked = bound.pod, objects.deletion(bound, conflicts < _CONFLICTS)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            await self._kube.delete(path, asked, timeout_s=_ANSWER_S)
        except KubeError as error:
            if error.status == 409:  # changed since: the watch tells, and it is judged anew
                not_before_s = asyncio.get_running_loop().time() + _FIRST_S
                self._tries[pod.uid] = _Try(not_before_s, _FIRST_S, bound.version, conflicts + 1)
            elif error.status != 404:
                self._metrics.api_writes.labels("pod", "failed").inc()
                _LOG.warning(
                    Line("pod not removed", namespace=pod.namespace, pod=pod.name, error=error)
                )
        else:
            self._metrics.api_writes.labels("pod", "written").inc()
