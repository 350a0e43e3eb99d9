"""Deletes pods that were bound to a GPU that was full, where the operator wants that.

bounds.py finds them; this writes an Event that says why, and deletes the pod by UID. It is a
deletion, not an eviction: a disruption budget protects the placed pod, and no other pod's GPU. What
fails is tried again. An agent that replaces a killed one writes the same Event.
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
from nri_plugin.model import Pod
from nri_plugin.objects import Bound

_LOG: Final = logging.getLogger(__name__)

_ANSWER_S: Final = 4.0
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class _Try:
    """Of a deletion that has not worked: not before when, and how long to wait after that."""

    not_before_s: float = 0.0
    wait_s: float = _FIRST_S


class Removal:
    def __init__(self, kube: Kube, events: Events, bounds: Bounds, metrics: Metrics) -> None:
        self._kube = kube
        self._events = events
        self._bounds = bounds
        self._metrics = metrics
        self._told: set[str] = set()
        self._tries: dict[str, _Try] = {}
        self._removing: set[str] = set()

    def begin(self, group: asyncio.TaskGroup, over: Mapping[str, Refusal]) -> None:
        """Delete those of them whose turn it is; returns at once. over: all of them, by UID."""
        now_s = asyncio.get_running_loop().time()
        self._told &= over.keys()
        self._tries = {uid: each for uid, each in self._tries.items() if uid in over}
        for uid, refusal in over.items():
            bound, last = self._bounds.pod(uid), self._tries.get(uid, _Try())
            if bound is None or bound.leaving or uid in self._removing:
                continue
            if len(self._removing) >= _AT_ONCE or now_s < last.not_before_s:
                continue
            self._tries[uid] = _Try(now_s + last.wait_s, min(2 * last.wait_s, _LONGEST_S))
            self._removing.add(uid)
            group.create_task(self._remove(bound, refusal), name=f"remove {uid}")

    async def _remove(self, bound: Bound, refusal: Refusal) -> None:
        uid = bound.pod.uid
        try:
            if uid in self._told or await self._tell(bound, refusal):
                await self._delete(bound.pod)
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

    async def _delete(self, pod: Pod) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            await self._kube.delete(path, objects.deletion(pod), timeout_s=_ANSWER_S)
        except KubeError as error:
            if error.status not in (404, 409):  # gone, or another pod of that name
                self._metrics.api_writes.labels("pod", "failed").inc()
                _LOG.warning(
                    Line("pod not removed", namespace=pod.namespace, pod=pod.name, error=error)
                )
        else:
            self._metrics.api_writes.labels("pod", "written").inc()
