"""Writes the agent's Lease, and Events, to the API server.

The Lease states the same readiness as /readyz. It is renewed every ten seconds, and at once when
the readiness changes. The scheduler excludes a node whose Lease is not ready or has expired.

An Event tells a pod's author of a container's problem, and what to do. If the API server does not
have the pod, the Event is about the node. An Event's name is a hash of its subject and cause.
Therefore a restarted agent does not repeat it. Failed writes are logged and retried.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line, printable
from nri_plugin.containers.parts import Parts
from nri_plugin.policy import kube_objects
from nri_plugin.policy.notices import Notice

_LOG: Final = logging.getLogger(__name__)

_RENEWED_WITHIN_S: Final = 5.0
_RETRY_S: Final = 2.0
_STOP_WRITE_S: Final = 1.5
_LEASE_LOOK_S: Final = 0.25
_TEXT_MAX: Final = 500
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
STOPPED: Final = "the agent was stopped"
_WRITTEN_WITHIN_S: Final = 4.0
_EVENTS_LOOK_S: Final = 0.2
_AGAIN_S: Final = 5.0


def _now() -> str:
    """Return the current time in the API server's format: RFC 3339 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Heartbeat:
    """Renews the agent's Lease. node_uid: returns the Node's UID, "" while it is not known."""

    def __init__(self, kube: Kube, parts: Parts, node_uid: Callable[[], str]) -> None:
        self._kube = kube
        self._node_name = parts.settings.node_name
        self._node_uid = node_uid
        self._readiness = parts.readiness
        self._written = parts.metrics.api_writes.labels("lease", "written")
        self._failed = parts.metrics.api_writes.labels("lease", "failed")
        self._problem = ""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reported, due_s = "", 0.0
        while True:
            text = "; ".join(self._readiness.problems)[:_TEXT_MAX] or "true"
            if loop.time() >= due_s or (reported and text != reported):
                done = await self._write(text, _RENEWED_WITHIN_S)
                reported = text if done else ""
                due_s = loop.time() + (names.AGENT_LEASE_RENEW_S if done else _RETRY_S)
            await asyncio.sleep(_LEASE_LOOK_S)

    async def mark_stopped(self) -> None:
        """Mark the Lease not ready. Otherwise pods would be bound here until the Lease expires."""
        await self._write(STOPPED, _STOP_WRITE_S)

    async def _write(self, ready: str, within_s: float) -> bool:
        lease = kube_objects.lease(self._node_name, self._node_uid(), _now(), ready)
        path = f"{_LEASES}/{lease['metadata']['name']}"
        try:
            try:
                await self._kube.patch(path, lease, timeout_s=within_s)
            except KubeError as error:
                if error.status != 404:
                    raise
                await self._kube.post(_LEASES, lease, timeout_s=within_s)
        except KubeError as error:
            self._failed.inc()
            if self._problem != str(error):
                _LOG.warning(Line("Lease not renewed", error=error))
            self._problem = str(error)
            return False
        self._written.inc()
        if self._problem:
            _LOG.info(Line("Lease renewed again"))
        self._problem = ""
        return True


class Events:
    """Writes notices as Events. node_uid: returns the Node's UID, "" while it is not known."""

    def __init__(self, kube: Kube, parts: Parts, node_uid: Callable[[], str]) -> None:
        self._kube = kube
        self._notices = parts.notices
        self._node_name = parts.settings.node_name
        self._node_uid = node_uid
        self._written = parts.metrics.api_writes.labels("event", "written")
        self._failed = parts.metrics.api_writes.labels("event", "failed")

    async def run(self) -> None:
        while True:
            notice = self._notices.first()
            if notice is None:
                await asyncio.sleep(_EVENTS_LOOK_S)
            elif await self.write(notice):
                self._notices.done(notice)
            else:
                await asyncio.sleep(_AGAIN_S)

    async def write(self, notice: Notice) -> bool:
        """Write the notice. Return False if the caller must retry. Return True if it is written, or
        if the API server will always reject it, for example in a namespace that is deleted."""
        pod, reason = notice.pod, notice.reason
        identity = (self._node_name, pod.uid, notice.container, reason, notice.action)
        name = f"gpuslice.{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:16]}"
        text = printable(notice.text)
        body = kube_objects.event(notice, text, self._node_name, self._node_uid(), name, _now())
        path = f"/apis/events.k8s.io/v1/namespaces/{body['metadata']['namespace']}/events"
        try:
            await self._kube.post(path, body, timeout_s=_WRITTEN_WITHIN_S)
        except KubeError as error:
            if error.status == 409:
                return True
            self._failed.inc()
            of_pod = {"namespace": pod.namespace, "pod": pod.name}
            _LOG.warning(Line("event not written", **of_pod, reason=reason, error=error))
            return 400 <= error.status < 500 and error.status not in (401, 429)
        self._written.inc()
        return True
