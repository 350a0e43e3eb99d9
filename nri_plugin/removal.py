"""Removes pods whose grant is not to be had: bound to a card that was full, or not granted it.

The pods are judged by bounds.py; this writes: an Event that says why, and a deletion of just that
pod as it was judged, by UID and version. Deletion and not eviction: a disruption budget protects
who was placed, and nobody else's card. Acts only while the watch is heard, and looks again and
again; what fails is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from contract import names
from contract.log_lines import Line
from kube.client import Kube, KubeError
from nri_plugin import objects
from nri_plugin.bounds import Bounds
from nri_plugin.errors import Refusal
from nri_plugin.events import Events
from nri_plugin.ledger import Hold
from nri_plugin.metrics import Metrics
from nri_plugin.model import Card, Pod
from nri_plugin.objects import Bound

_LOG: Final = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_ANSWER_S: Final = 4.0
_ASK_S: Final = 0.5
"""A container waits for it."""
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0


class Removal:
    """holds: what containers hold. heard: whether the watch is, so that what is known is true;
    silent: whether the API server did not answer when it was asked last."""

    def __init__(
        self,
        kube: Kube,
        events: Events,
        node_name: str,
        bounds: Bounds,
        holds: Callable[[], Sequence[Hold]],
        cards: Callable[[], Sequence[Card]],
        heard: Callable[[], bool],
        silent: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        self._kube = kube
        self._events = events
        self._node_name = node_name
        self._bounds = bounds
        self._holds = holds
        self._cards = cards
        self._heard = heard
        self._silent = silent
        self._metrics = metrics
        self._told: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}
        """By UID: not before when, and how long to wait after that."""
        self._strange: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        self._bounds.ask = self.ask
        try:
            while True:
                if self._heard():
                    await self._look()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._bounds.ask = None

    async def ask(self, pod: Pod) -> None:
        """What the API server says of a pod that the watch has not told of. A container waits for
        it, so nobody is asked who is known not to answer."""
        if self._silent():
            return
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            raw = await self._kube.get(path, timeout_s=_ASK_S)
        except KubeError as error:
            if error.status == 404:
                self._bounds.deny(pod.uid, "there is no such pod")
            return
        bound, node_name = objects.bound(raw), objects.node_of(raw)
        if bound.pod.uid != pod.uid:
            self._bounds.deny(pod.uid, f"the pod of that name is another, {bound.pod.uid}")
        elif node_name != self._node_name:
            self._bounds.deny(pod.uid, f"the pod is bound to {node_name or 'no node'}")
        else:
            self._bounds.vouch(bound)

    async def _look(self) -> None:
        holds, cards = self._holds(), self._cards()
        for pod in {hold.pod_uid: hold.pod for hold in holds}.values():
            if self._bounds.unknown(pod):
                await self.ask(pod)
        holding = frozenset(hold.pod_uid for hold in holds)
        doomed = {**self._bounds.objected(), **self._bounds.over(cards, holding)}
        doubted = set()
        for hold in holds:
            doubt = self._bounds.doubt(hold, cards)
            if doubt is not None:
                doubted.add(hold.container_id)
                doomed.setdefault(hold.pod_uid, doubt)
        self._say_strange(holds, doubted)
        for uid, refusal in doomed.items():
            bound = self._bounds.pod(uid)
            if bound is not None and not bound.leaving:
                await self._remove(bound, refusal)
        self._told &= doomed.keys()
        self._again = {uid: each for uid, each in self._again.items() if uid in doomed}

    async def _remove(self, bound: Bound, refusal: Refusal) -> None:
        uid, loop = bound.pod.uid, asyncio.get_running_loop()
        not_before_s, wait_s = self._again.get(uid, (0.0, _FIRST_S))
        if loop.time() < not_before_s:
            return
        self._again[uid] = (loop.time() + wait_s, min(2 * wait_s, _LONGEST_S))
        pod = bound.pod
        if uid not in self._told:
            text = f"gpuslice removes the pod: {refusal.text}"
            _LOG.error(
                Line(
                    "pod removed",
                    namespace=pod.namespace,
                    pod=pod.name,
                    uid=uid,
                    reason=refusal.reason.name,
                    text=text,
                )
            )
            if not await self._events.tell(pod, names.EVENT_GRANT_REFUSED, "Remove", text):
                return
            self._told.add(uid)
            self._metrics.pods_removed.labels(refusal.reason.name).inc()
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            await self._kube.delete(path, objects.deletion(bound), timeout_s=_ANSWER_S)
        except KubeError as error:
            # Gone, or changed since: the watch tells, and it is judged anew.
            if error.status not in (404, 409):
                self._metrics.api_writes.labels("pod", "failed").inc()
                _LOG.warning(
                    Line("pod not removed", namespace=pod.namespace, pod=pod.name, error=error)
                )
        else:
            self._metrics.api_writes.labels("pod", "written").inc()

    def _say_strange(self, holds: Sequence[Hold], doubted: AbstractSet[str]) -> None:
        """Containers that hold what the API server does not confirm; of those whose pod it does not
        have, nothing can be removed: somebody made them past the API server."""
        denied = {hold.container_id: hold for hold in holds if self._bounds.denied(hold.pod_uid)}
        self._metrics.unconfirmed.set(len(doubted | denied.keys()))
        for container_id in denied.keys() - self._strange:
            hold = denied[container_id]
            _LOG.error(
                Line(
                    "container whose pod the API server does not have: find out who made it",
                    namespace=hold.pod.namespace,
                    pod=hold.pod.name,
                    uid=hold.pod_uid,
                    container=hold.container,
                    container_id=container_id,
                    problem=self._bounds.denied(hold.pod_uid),
                )
            )
        self._strange = frozenset(denied)
