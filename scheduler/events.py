"""Kubernetes Events for State's problems, and for notices about pods.

kube-scheduler itself writes Events for bound and refused pods. Of several replicas, only the
process that may bind writes Events. The same Event is written at most once an hour, and a token
bucket limits the total rate. A failed write is not repeated.
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
"""The API version, kind, namespace, name and UID of an object."""

_LOG: Final = logging.getLogger(__name__)

AGAIN_S: Final = 3600.0
BURST: Final = 25
PER_S: Final = 1 / 6
"""Ten Events per minute, after the initial burst."""
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
REASONS: Final = (POD_PROBLEM, POD_NOTICE, NODE_PROBLEM, SECOND_INSTALLATION)


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
        self._written_at_s: dict[tuple[str, ...], float] = {}

    async def problems(self, problems: Iterable[Problem]) -> None:
        """Write an Event for each problem. problems: all current ones."""
        for each in problems:
            if each.about:
                namespace, _, name = each.about.partition("/")
                await self._write(POD_PROBLEM, ("v1", "Pod", namespace, name, each.uid), each.text)
            else:
                # kubectl finds the Events of a node by its name, which must be in the field uid.
                await self._write(NODE_PROBLEM, ("v1", "Node", "", each.node, each.node), each.text)

    async def notices(self, pods: Iterable[Pending]) -> None:
        """Write the notices of accepted requests, for the pods' authors."""
        for pod in pods:
            for text in pod.notices:
                about = ("v1", "Pod", pod.namespace, pod.name, pod.uid)
                await self._write(POD_NOTICE, about, text)

    async def second_installation(self, status: str) -> None:
        """Report that this pod's kube-scheduler works while that of another pod holds the Lease."""
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
            # The Event is not recorded as written, so a later report tries it again.
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
        "type": "Normal" if reason == POD_NOTICE else "Warning",
        "regarding": about,
        "note": _cut(text),
    }


def _cut(text: str) -> str:
    """Shorten the text, and keep only printable ASCII, because a tenant may have written it."""
    plain = printable(text)
    return plain if len(plain) <= NOTE_BYTES else plain[: NOTE_BYTES - 3] + "..."
