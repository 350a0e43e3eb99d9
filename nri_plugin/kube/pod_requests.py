"""Requests about single pods: looks up pods that the watch has not reported, and deletes pods that
were bound to a full GPU, if the operator enabled that.

Few run at once, and each is retried with exponential backoff until it is answered. A creation waits
half a second at most for its lookup. A deletion is not an eviction, because a disruption budget
would protect this pod, and not the pods whose GPU it overcommits. An Event with the reason is
written before the deletion; an agent that restarts in between writes the same Event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from contract import names
from kube.client import Kube
from kube.errors import KubeError
from kube.log_lines import Line
from nri_plugin.kube.events import Events
from nri_plugin.metrics import Metrics
from nri_plugin.policy import kube_objects
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice
from nri_plugin.policy.refusals import RESCHEDULE, Refusal

_LOG: Final = logging.getLogger(__name__)

_GET_S: Final = 0.5
"""A container's creation waits for the lookup."""
_DELETE_S: Final = 4.0
_AT_ONCE: Final = 8


class _Attempts:
    """Schedules retries per pod. longest_s: upper bound of the interval between two attempts; each
    interval is twice the one before."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._running: set[str] = set()
        self._again: dict[str, tuple[float, float]] = {}
        """By UID: earliest time of the next attempt, and the interval after it."""

    def begin(
        self,
        group: asyncio.TaskGroup,
        uids: Iterable[str],
        work: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        """Start the work that is due. uids: all pending pods; state of others is dropped."""
        now_s, wanted = asyncio.get_running_loop().time(), tuple(uids)
        self._again = {uid: self._again[uid] for uid in wanted if uid in self._again}
        for uid in wanted:
            not_before_s, wait_s = self._again.get(uid, (now_s, self._first_s))
            busy = uid in self._running or len(self._running) >= _AT_ONCE
            if busy or now_s < not_before_s:
                continue
            self._again[uid] = (now_s + wait_s, min(2 * wait_s, self._longest_s))
            self._running.add(uid)
            task = group.create_task(work(uid), name=f"request about pod {uid}")
            task.add_done_callback(partial(self._ended, uid))

    def _ended(self, uid: str, _task: asyncio.Task[None]) -> None:
        self._running.discard(uid)


class PodRequests:
    """unreachable: whether the API server is known not to answer."""

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        bound_pods: BoundPods,
        events: Events,
        metrics: Metrics,
        unreachable: Callable[[], bool],
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._bound_pods = bound_pods
        self._events = events
        self._metrics = metrics
        self._unreachable = unreachable
        self._lookups = _Attempts(first_s=0.5, longest_s=30.0)
        self._deletions = _Attempts(first_s=1.0, longest_s=60.0)
        self._reported: set[str] = set()
        """UIDs of pods to delete whose Event is written."""

    async def look_up(self, pod: Pod) -> None:
        """Look the pod up and pass the answer to bound_pods.py; without an answer, do nothing."""
        if self._unreachable():
            return
        try:
            raw = await self._kube.get(_path(pod), timeout_s=_GET_S)
        except KubeError as error:
            if error.status == 404:
                self._bound_pods.deny(pod.uid, "there is no such pod")
            return
        bound, node_name = kube_objects.bound(raw), kube_objects.node_of(raw)
        if bound.pod.uid != pod.uid:
            mirrored = kube_objects.is_mirror(raw)
            what = "the mirror of a static pod" if mirrored else f"another, {bound.pod.uid}"
            self._bound_pods.deny(pod.uid, f"the pod of that name is {what}")
        elif node_name != self._node_name:
            self._bound_pods.deny(pod.uid, f"the pod is bound to {node_name or 'no node'}")
        else:
            self._bound_pods.confirm(bound)

    def look_up_all(self, group: asyncio.TaskGroup, pods: Iterable[Pod]) -> None:
        """Returns at once. pods: all that the watch has not reported."""
        unknown = {pod.uid: pod for pod in pods}
        self._lookups.begin(group, unknown, lambda uid: self.look_up(unknown[uid]))

    def delete(self, group: asyncio.TaskGroup, over: Mapping[str, Refusal]) -> None:
        """Returns at once. over: by UID, all pods that were bound to a full GPU."""
        self._reported &= over.keys()
        found = {uid: self._bound_pods.pod(uid) for uid in over}
        pods = {uid: bound.pod for uid, bound in found.items() if bound and not bound.leaving}
        self._deletions.begin(group, pods, lambda uid: self._delete(pods[uid], over[uid]))

    async def _delete(self, pod: Pod, refusal: Refusal) -> None:
        if pod.uid not in self._reported and not await self._report(pod, refusal):
            return
        writes = self._metrics.api_writes
        try:
            await self._kube.delete(_path(pod), kube_objects.deletion(pod), timeout_s=_DELETE_S)
        except KubeError as error:
            if error.status not in (404, 409):  # deleted, or another pod of that name
                writes.labels("pod", "failed").inc()
                _LOG.warning(
                    Line("pod not removed", namespace=pod.namespace, pod=pod.name, error=error)
                )
        else:
            writes.labels("pod", "written").inc()

    async def _report(self, pod: Pod, refusal: Refusal) -> bool:
        text = f"gpuslice removes the pod: {refusal.text.removesuffix(RESCHEDULE)}"
        reason = refusal.reason.name
        _LOG.error(Line("pod removed", **pod.log_fields, reason=reason, text=text))
        if not await self._events.write(
            Notice(pod, "", names.EVENT_GRANT_REFUSED, text, action="Remove")
        ):
            return False
        self._reported.add(pod.uid)
        self._metrics.pods_removed.labels(reason).inc()
        return True


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
