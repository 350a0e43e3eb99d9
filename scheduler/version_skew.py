"""Compares the versions of kube-scheduler and the API server.

kube-scheduler may be one minor version older than the API server, and not newer. An upgrade of a
managed control plane does not change kube-scheduler's image. See docs/install.md.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.log_lines import Line

_LOG: Final = logging.getLogger(__name__)

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


class VersionSkew:
    """kube_scheduler: its version, for example v1.36.3; "" if it is not known."""

    def __init__(self, kube: Kube, kube_scheduler: str) -> None:
        self._kube = kube
        self._kube_scheduler = kube_scheduler
        self.problem = ""
        """Why kube-scheduler's version is not supported with this API server; "" if it is."""

    async def check(self) -> None:
        """Read the API server's version. Call it repeatedly: the API server may be upgraded."""
        try:
            served = await self._kube.get("/version")
        except KubeError:
            return
        problem = skew(self._kube_scheduler, str(served.get("gitVersion", "")))
        if problem and problem != self.problem:
            _LOG.warning(Line("unsupported version of kube-scheduler", problem=problem))
        self.problem = problem


def skew(kube_scheduler: str, api_server: str) -> str:
    """Return why the versions are not supported together; "" if they are or one is not known."""
    ours, theirs = _VERSION.match(kube_scheduler), _VERSION.match(api_server)
    if not ours or not theirs or int(theirs[2]) - int(ours[2]) in (0, 1):
        return ""
    return (
        f"kube-scheduler: invalid version {kube_scheduler}: must be the minor version of the API"
        f" server, {api_server}, or one below it; run helm upgrade"
    )
