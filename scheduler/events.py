"""Kubernetes Events for State's problems, and for notices about pods.

kube-scheduler itself writes Events for bound and refused pods. Of several replicas, only the
process that may bind writes Events. The same Event is written at most once an hour, and a token
bucket limits the total rate. An Event that it delays is written later: problems are reported again
and again, and notices wait here. Those never written come first. A failed write is not repeated.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from gpuslice.kube.log_lines import Line, printable
from scheduler.kubernetes.facts import Problem
from scheduler.kubernetes.requests import Pending
from scheduler.metrics import Metrics

Regarding = tuple[str, str, str, str, str]
"""The API version, kind, namespace, name and UID of an object."""
_About = tuple[str, Regarding, str]
"""An Event's reason, object and text."""

_LOG: Final = logging.getLogger(__name__)

AGAIN_S: Final = 3600.0
_KEPT_S: Final = 24 * AGAIN_S
"""For so long it is known when an Event was written."""
NOTICES_MAX: Final = 1000
"""So many notices wait at most. Older ones are dropped."""
BURST: Final = 25
PER_S: Final = 2.0
"""Events per second, after the initial burst. kube-apiserver keeps each for an hour."""
NOTE_BYTES: Final = 1024
"""The API server's limit for an Event's text."""
COMPONENT: Final = "gpuslice.io/scheduler"
_ANSWER_S: Final = 5.0
_DEFAULT_NAMESPACE: Final = "default"
"""The namespace of Events about nodes, in which kubectl finds them."""

POD_PROBLEM: Final = "GPUShareUnclear"
POD_NOTICE: Final = "GPUShareNotice"
NODE_PROBLEM: Final = "GPUInventoryProblem"
SECOND_INSTALLATION: Final = "SecondInstallation"
REASONS: Final = (
    *(POD_PROBLEM, POD_NOTICE, NODE_PROBLEM, SECOND_INSTALLATION),
    *(names.EVENT_QUEUE_WAITING, names.EVENT_QUEUE_UNSERVED, names.EVENT_QUEUE_UNPLACEABLE),
)
_NORMAL: Final = (POD_NOTICE, names.EVENT_QUEUE_WAITING)


class Bucket:
    """A token bucket of BURST tokens, filled at PER_S."""

    def __init__(self, now_s: float) -> None:
        self._full = float(BURST)
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        self._full = min(BURST, self._full + (now_s - self._at_s) * PER_S)
        self._at_s = now_s
        if self._full < 1:
            return False
        self._full -= 1
        return True


class Events:
    """Writes Events. post: Kube.post. clock: monotonic seconds. identity: names this process."""

    def __init__(
        self,
        post: Callable[..., Awaitable[Any]],
        metrics: Metrics,
        clock: Callable[[], float],
        identity: str,
    ) -> None:
        self._post = post
        self._metrics = metrics
        self._clock = clock
        self._identity = identity
        self._bucket = Bucket(clock())
        self._written_at_s: dict[_About, float] = {}
        self._notices: deque[_About] = deque(maxlen=NOTICES_MAX)

    async def problems(self, problems: Iterable[Problem]) -> None:
        """Write an Event for each problem. problems: all current ones."""
        await self.write(map(_about_problem, problems))

    async def notices(self, pods: Iterable[Pending]) -> None:
        """Write the notices of accepted requests, for the pods' authors, and those that wait."""
        for pod in pods:
            about = ("v1", "Pod", pod.namespace, pod.name, pod.uid)
            self._notices.extend((POD_NOTICE, about, text) for text in pod.notices)
        waiting = list(self._notices)
        self._notices.clear()
        self._notices.extend(await self.write(waiting))

    async def second_installation(self, status: str) -> None:
        """Report that this pod's kube-scheduler works while that of another pod holds the Lease."""
        name = names.LEASE_KUBE_SCHEDULER
        lease = ("coordination.k8s.io/v1", "Lease", names.NAMESPACE, name, "")
        await self.write([(SECOND_INSTALLATION, lease, status)])

    async def write(self, events: Iterable[_About]) -> Sequence[_About]:
        """Write the Events that are due. Return those that the token bucket delays."""
        now_s, written_at_s = self._clock(), self._written_at_s
        for each in [each for each, at_s in written_at_s.items() if now_s - at_s >= _KEPT_S]:
            del written_at_s[each]
        due = [
            each
            for each in dict.fromkeys(events)
            if now_s - written_at_s.get(each, -inf) >= AGAIN_S
        ]
        due.sort(key=lambda each: written_at_s.get(each, -inf))
        for done, each in enumerate(due):
            if not self._bucket.take(self._clock()):
                self._metrics.events.labels("dropped").inc(len(due) - done)
                return due[done:]
            await self._write(*each)
        return []

    async def _write(self, reason: str, regarding: Regarding, text: str) -> None:
        self._written_at_s[reason, regarding, text] = self._clock()
        body = event(reason, regarding, text, self._identity, datetime.now(UTC))
        namespace = body["metadata"]["namespace"]
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        try:
            await self._post(path, body, timeout_s=_ANSWER_S)
        except KubeError as error:
            self._metrics.events.labels("failed").inc()
            _LOG.warning(Line("event not written", reason=reason, about=regarding[3], error=error))
        else:
            self._metrics.events.labels("written").inc()


def _about_problem(problem: Problem) -> _About:
    if problem.about:
        namespace, _, name = problem.about.partition("/")
        return POD_PROBLEM, ("v1", "Pod", namespace, name, problem.uid), problem.text
    # kubectl finds the Events of a node by its name, which must be in the field uid.
    return NODE_PROBLEM, ("v1", "Node", "", problem.node, problem.node), problem.text


def event(reason: str, regarding: Regarding, text: str, identity: str, now: datetime) -> Json:
    """Return an Event of events.k8s.io/v1."""
    fields = ("apiVersion", "kind", "namespace", "name", "uid")
    about = dict(zip(fields, regarding, strict=True))
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "namespace": about["namespace"] or _DEFAULT_NAMESPACE,
            "name": f"gpuslice.{uuid.uuid4().hex[:16]}",
        },
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": COMPONENT,
        "reportingInstance": identity[:128],
        "action": "Schedule",
        "reason": reason,
        "type": "Normal" if reason in _NORMAL else "Warning",
        "regarding": about,
        "note": _cut(text),
    }


def _cut(text: str) -> str:
    """Shorten the text, and keep only printable ASCII, because a tenant may have written it."""
    plain = printable(text)
    return plain if len(plain) <= NOTE_BYTES else plain[: NOTE_BYTES - 3] + "..."
