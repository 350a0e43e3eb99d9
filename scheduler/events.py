"""Kubernetes Events for State's problems, and for notices about pods.

kube-scheduler writes the Events of binding and of refusals. Only the process that may bind writes
Events, or each replica would. The same Event is written at most once an hour, and a token bucket
bounds the total rate. A failed write is dropped.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from gpuslice.kube.log_lines import Line, printable
from scheduler.kubernetes.facts import Problem
from scheduler.kubernetes.requests import Pending
from scheduler.metrics import Metrics

Regarding = tuple[str, str, str, str, str]
"""API version, kind, namespace, name and UID of an object."""

_LOG: Final = logging.getLogger(__name__)

AGAIN_S: Final = 3600.0
BURST: Final = 25
PER_S: Final = 1 / 6
"""Ten per minute after the initial burst."""
NOTE_BYTES: Final = 1024
"""The API server's limit."""
COMPONENT: Final = "gpuslice.io/scheduler"
_ANSWER_S: Final = 5.0
_DEFAULT_NAMESPACE: Final = "default"
"""Namespace of events about nodes, which have none; kubectl reads them there."""

POD_PROBLEM: Final = "GPUShareUnclear"
POD_NOTICE: Final = "GPUShareNotice"
NODE_PROBLEM: Final = "GPUInventoryProblem"
SECOND_INSTALLATION: Final = "SecondInstallation"
REASONS: Final = (POD_PROBLEM, POD_NOTICE, NODE_PROBLEM, SECOND_INSTALLATION)


class Bucket:
    """Token bucket: at most BURST at once, and PER_S in the long run."""

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
    """post: Kube.post. clock: monotonic seconds. identity: of this process."""

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
        self._written_at_s: dict[tuple[str, ...], float] = {}

    async def problems(self, problems: Iterable[Problem]) -> None:
        """problems: the complete list of current ones."""
        for each in problems:
            if each.about:
                namespace, _, name = each.about.partition("/")
                await self._write(POD_PROBLEM, ("v1", "Pod", namespace, name, each.uid), each.text)
            else:
                # kubectl finds a node's events by the node's name in the UID field.
                await self._write(NODE_PROBLEM, ("v1", "Node", "", each.node, each.node), each.text)

    async def notices(self, pods: Iterable[Pending]) -> None:
        """Writes notices for the author of a pod whose request was accepted."""
        for pod in pods:
            for text in pod.notices:
                about = ("v1", "Pod", pod.namespace, pod.name, pod.uid)
                await self._write(POD_NOTICE, about, text)

    async def second_installation(self, status: str) -> None:
        """kube-scheduler calls this process, but another pod's holds the Lease."""
        name = names.LEASE_KUBE_SCHEDULER
        lease = ("coordination.k8s.io/v1", "Lease", names.NAMESPACE, name, "")
        await self._write(SECOND_INSTALLATION, lease, status)

    async def _write(self, reason: str, regarding: Regarding, text: str) -> None:
        now_s = self._clock()
        about = (reason, *regarding, text)
        self._written_at_s = {
            each: at_s for each, at_s in self._written_at_s.items() if now_s - at_s < AGAIN_S
        }
        if about in self._written_at_s:
            return
        if not self._bucket.take(now_s):
            # Not recorded: it is written when the bucket has capacity again.
            self._metrics.events.labels("dropped").inc()
            return
        self._written_at_s[about] = now_s
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


def event(reason: str, regarding: Regarding, text: str, identity: str, now: datetime) -> Json:
    """events.k8s.io/v1."""
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
        "type": "Normal" if reason == POD_NOTICE else "Warning",
        "regarding": about,
        "note": _cut(text),
    }


def _cut(text: str) -> str:
    """Cuts the text and keeps printable ASCII, as in the log: a tenant may have written it."""
    plain = printable(text)
    return plain if len(plain) <= NOTE_BYTES else plain[: NOTE_BYTES - 3] + "..."
