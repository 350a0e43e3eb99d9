"""Switches admission policies from warnings to refusals once the installation works.

The installation works if the extender's lists are complete, an agent is ready, and the pod's
kube-scheduler leads. Until then the policies only warn: a failed installation must not refuse pods.
The policies' bindings are watched, because applying the chart again resets them to warnings. If the
process may not list or patch the bindings, it logs one warning and schedules pods as usual.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json, at
from gpuslice.kube.log_lines import Line
from gpuslice.kube.reflector import UNLISTED, Reflector
from scheduler.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

_COLLECTION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_SELECTOR: Final = f"{names.LABEL_ADMISSION}={names.ADMISSION_AUTO}"
_OPEN: Final = (["Audit"], ["Warn"])
"""A policy's binding with exactly these actions is switched to Deny. Other actions, or another
value of LABEL_ADMISSION, are an operator's choice and are not changed."""
_WARNS: Final = "-warn"
_NO_REQUEST: Final[Json] = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CONNECT"],
    "resources": ["pods"],
}
_OFF: Final[Json] = {"spec": {"matchResources": {"resourceRules": [_NO_REQUEST]}}}
"""The patch for a policy's second binding, which warns until the first refuses. The API server
evaluates a policy for each binding that matches. Helm waits for the object, so it must exist."""
_POLL_S: Final = 1.0
_ANSWER_S: Final = 3.0
_RETRY_S: Final = 30.0


class Admission:
    """Switches the bindings. is_ready: returns whether the installation works."""

    def __init__(self, kube: Kube, is_ready: Callable[[], bool], metrics: Metrics) -> None:
        self._kube = kube
        self._is_ready = is_ready
        self._metrics = metrics
        self._warning: dict[str, Json] = {}
        """The patch that makes a binding refuse, by name of each that only warns."""
        self._refusing: set[str] = set()
        """Names of bindings that refuse while their second binding may still warn."""
        self._logged_problem = ""

    async def run(self) -> None:
        """Watch and switch the bindings, until cancelled."""
        reflector = Reflector(self._kube, _COLLECTION, self, query={"labelSelector": _SELECTOR})
        following = asyncio.create_task(reflector.run(), name="follow admission")
        try:
            while True:
                await asyncio.sleep(_POLL_S)
                if reflector.problem not in ("", UNLISTED):
                    self._log_problem(reflector.problem)
                    continue
                try:
                    await self._enforce()
                except KubeError as error:
                    self._log_problem(str(error))
                    await asyncio.sleep(_RETRY_S)
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _enforce(self) -> None:
        if not (self._warning or self._refusing) or not self._is_ready():
            return
        failed: KubeError | None = None
        for name, patch in sorted(self._warning.items()):
            try:
                stored = await self._patch(name, patch)
            except KubeError as error:
                # 404, 409: the watch will report the change. Try the other bindings first.
                failed = failed if error.status in (404, 409) else error
                continue
            self.observed(stored)
            self._metrics.enforced.inc()
            _LOG.info(Line("admission policy refuses from now on", binding=name))
        for name in sorted(self._refusing):
            try:
                await self._patch(f"{name}{_WARNS}", _OFF)
            except KubeError as error:
                if error.status != 404:
                    failed = error
                    continue
            self._refusing.discard(name)
        if failed is not None:
            raise failed

    async def _patch(self, name: str, patch: Json) -> Json:
        path = f"{_COLLECTION}/{name}"
        stored: Json = await self._kube.patch(path, patch, timeout_s=_ANSWER_S)
        return stored

    def _log_problem(self, problem: str) -> None:
        if problem != self._logged_problem:
            _LOG.warning(Line("admission policies may only warn", error=problem))
        self._logged_problem = problem

    # --- the watch's sink

    def observed(self, raw: Json) -> str:
        name, patch = str(at(raw, "metadata")["name"]), denial(raw)
        self._warning.pop(name, None)
        if patch is not None:
            self._warning[name] = patch
        elif "Deny" in (at(raw, "spec").get("validationActions") or ()):
            self._refusing.add(name)
        return name

    def deleted(self, raw: Json) -> None:
        self._warning.pop(str(at(raw, "metadata")["name"]), None)

    def listed(self, keys: set[str]) -> None:
        self._warning = {name: self._warning[name] for name in self._warning if name in keys}


def denial(binding: Json) -> Json | None:
    """Return the patch that makes the binding refuse, or None if it must not be changed. The patch
    names the version that was read, so that it never undoes a later change."""
    metadata = at(binding, "metadata")
    is_auto = at(metadata, "labels").get(names.LABEL_ADMISSION) == names.ADMISSION_AUTO
    if not is_auto or at(binding, "spec").get("validationActions") not in _OPEN:
        return None
    return {
        "metadata": {"resourceVersion": metadata.get("resourceVersion")},
        "spec": {"validationActions": ["Deny"]},
    }
