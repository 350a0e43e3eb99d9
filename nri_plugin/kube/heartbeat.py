"""The agent's Lease at the API server.

Renewed every ten seconds, and at once when the agent becomes ready or not ready.

It reports the same as /readyz. An expired Lease means not ready, too: the scheduler excludes a node
whose Lease was not renewed. Writes nothing else; failures are retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.policy import kube_objects

_LOG: Final = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
_ANSWER_S: Final = 5.0
_STOP_WRITE_S: Final = 1.5
_LOOK_S: Final = 0.25
_TEXT_MAX: Final = 500
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
STOPPED: Final = "the agent was stopped"


class Heartbeat:
    """node_uid: "" while it is not known."""

    def __init__(self, kube: Kube, parts: Parts, node_uid: Callable[[], str]) -> None:
        self._kube = kube
        self._node_name = parts.settings.node_name
        self._node_uid = node_uid
        self._readiness = parts.readiness
        self._written = parts.metrics.api_writes.labels("lease", "written")
        self._failed = parts.metrics.api_writes.labels("lease", "failed")
        self._problem = ""

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        reported, due_s = "", 0.0
        while True:
            text = "; ".join(self._readiness.problems)[:_TEXT_MAX] or "true"
            if loop.time() >= due_s or (reported and text != reported):
                done = await self._write(text, _ANSWER_S)
                reported = text if done else ""
                due_s = loop.time() + (names.AGENT_LEASE_RENEW_S if done else _RETRY_S)
            await asyncio.sleep(_LOOK_S)

    async def mark_stopped(self) -> None:
        """Mark the Lease not ready, so that no pod is bound here before the Lease expires."""
        await self._write(STOPPED, _STOP_WRITE_S)

    async def _write(self, ready: str, within_s: float) -> bool:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        lease = kube_objects.lease(self._node_name, self._node_uid(), now, ready)
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
