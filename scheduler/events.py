"""Kubernetes Events of what a person should look at: the state's problems, and little else.

kube-scheduler writes `Scheduled` of each pod that it had us bind, and `FailedScheduling` with our
words where nothing fits; we write no second one. Written by the one that may bind, or each replica
would. The same is told once an hour at most, and no more in all than a bucket gives: a cluster full
of problems must not drown in events of them. Events are for people: one that fails is not written.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from contract import names
from contract.log_lines import Line
from kube.client import KubeError
from scheduler.facts import Problem
from scheduler.metrics import Metrics

Json = Mapping[str, Any]
Regarding = tuple[str, str, str, str, str]
"""An object's API version, kind, namespace, name and UID."""

_LOG: Final = logging.getLogger(__name__)

AGAIN_S: Final = 3600.0
BURST: Final = 25
PER_S: Final = 1 / 6
"""Ten a minute, beyond the first few."""
NOTE_BYTES: Final = 1024
"""The API server takes no more."""
COMPONENT: Final = "gpuslice.io/scheduler"
_ANSWER_S: Final = 5.0
_DEFAULT_NAMESPACE: Final = "default"
"""Of events about nodes, which have no namespace; kubectl looks there."""

POD_PROBLEM: Final = "GPUShareUnclear"
NODE_PROBLEM: Final = "GPUInventoryProblem"
SECOND_INSTALLATION: Final = "SecondInstallation"
REASONS: Final = (POD_PROBLEM, NODE_PROBLEM, SECOND_INSTALLATION)


class Client(Protocol):
    """What is needed of `kube.Kube`."""

    async def post(self, path: str, body: Any, *, timeout_s: float = ...) -> Any: ...


class Bucket:
    """At most BURST at once, and PER_S in the long run."""

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
    """clock: monotonic seconds. identity: of this process."""

    def __init__(
        self, kube: Client, metrics: Metrics, clock: Callable[[], float], identity: str
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._clock = clock
        self._identity = identity
        self._bucket = Bucket(clock())
        self._told: dict[tuple[str, ...], float] = {}

    async def problems(self, found: Iterable[Problem]) -> None:
        """What is wrong now, all of it."""
        for each in found:
            if each.about:
                namespace, _, name = each.about.partition("/")
                await self._tell(POD_PROBLEM, ("v1", "Pod", namespace, name, each.uid), each.text)
            else:
                # kubectl looks for a node's events by its name in place of the UID.
                await self._tell(NODE_PROBLEM, ("v1", "Node", "", each.node, each.node), each.text)

    async def second_installation(self, standing: str) -> None:
        """We are asked to bind, and another installation does."""
        lease = ("coordination.k8s.io/v1", "Lease", names.NAMESPACE, names.LEASE_SCHEDULER, "")
        # The text tells the time; who it is is the same.
        await self._tell(SECOND_INSTALLATION, lease, standing, key=self._identity)

    async def _tell(self, reason: str, regarding: Regarding, text: str, key: str = "") -> None:
        now_s = self._clock()
        about = (reason, *regarding, key or text)
        self._told = {each: at for each, at in self._told.items() if now_s - at < AGAIN_S}
        if about in self._told:
            return
        if not self._bucket.take(now_s):
            # Not entered: it is told when there is room again.
            self._metrics.events.labels("dropped").inc()
            return
        self._told[about] = now_s
        body = event(reason, regarding, text, self._identity, datetime.now(UTC))
        namespace = body["metadata"]["namespace"]
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        try:
            await self._kube.post(path, body, timeout_s=_ANSWER_S)
        except KubeError as error:
            self._metrics.events.labels("failed").inc()
            _LOG.warning(Line("event", failed=reason, about=regarding[3], error=error))
        else:
            self._metrics.events.labels("written").inc()


def event(reason: str, regarding: Regarding, text: str, identity: str, at: datetime) -> Json:
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
        "eventTime": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": COMPONENT,
        "reportingInstance": identity[:128],
        "action": "Schedule",
        "reason": reason,
        "type": "Warning",
        "regarding": about,
        "note": _cut(text),
    }


def _cut(text: str) -> str:
    """In printable ASCII, as in the log: the text may be a tenant's."""
    plain = text.encode("ascii", "backslashreplace").decode()
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    return plain if len(plain) <= NOTE_BYTES else plain[: NOTE_BYTES - 3] + "..."
