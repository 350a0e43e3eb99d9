"""Writes Kubernetes Events: for a pod, why it is deleted or what its author should check; for the
node, if the API server does not have the pod.

Failures are logged; the caller decides whether to retry. The text is printable and short, whatever
it quotes. An event's name is derived from its content, so that an agent that restarts before it
recorded its write does not create a duplicate.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line, printable
from nri_plugin.containers.parts import Parts
from nri_plugin.policy import kube_objects
from nri_plugin.policy.notices import Notice

_LOG: Final = logging.getLogger(__name__)

_ANSWER_S: Final = 4.0
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 5.0


class Events:
    """node_uid: "" while it is not known."""

    def __init__(self, kube: Kube, parts: Parts, node_uid: Callable[[], str]) -> None:
        self._kube = kube
        self._notices = parts.notices
        self._node_name = parts.settings.node_name
        self._node_uid = node_uid
        self._written = parts.metrics.api_writes.labels("event", "written")
        self._failed = parts.metrics.api_writes.labels("event", "failed")

    async def run(self) -> None:
        """Write pending notices until cancelled."""
        while True:
            notice = self._notices.first()
            if notice is None:
                await asyncio.sleep(_LOOK_S)
            elif await self.write(notice):
                self._notices.done(notice)
            else:
                await asyncio.sleep(_AGAIN_S)

    async def write(self, notice: Notice) -> bool:
        """Write it. False: retry. True: written, or it never can be: the namespace is being
        deleted, or the server rejects it."""
        pod, reason = notice.pod, notice.reason
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        identity = (self._node_name, pod.uid, notice.container, reason, notice.action)
        name = f"gpuslice.{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:16]}"
        text = printable(notice.text)
        body = kube_objects.event(notice, text, self._node_name, self._node_uid(), name, at)
        path = f"/apis/events.k8s.io/v1/namespaces/{body['metadata']['namespace']}/events"
        try:
            await self._kube.post(path, body, timeout_s=_ANSWER_S)
        except KubeError as error:
            if error.status == 409:
                return True
            self._failed.inc()
            of_pod = {"namespace": pod.namespace, "pod": pod.name}
            _LOG.warning(Line("event not written", **of_pod, reason=reason, error=error))
            return 400 <= error.status < 500 and error.status not in (401, 429)
        self._written.inc()
        return True
