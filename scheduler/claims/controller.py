"""Makes the ResourceClaimTemplates that pods wait for, and removes those that no pod names.

kube-controller-manager lets a pod wait for a missing template. A template's spec cannot change, so
a template that lacks a new size of GPU is deleted and made again. Existing claims stay as they are,
because kube-controller-manager 1.36 does not reliably make a deleted claim again. All state is in
the API server. Several processes at once do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json, at, objects
from gpuslice.kube.log_lines import Line
from gpuslice.kube.reflector import Reflector
from scheduler.claims import templates
from scheduler.queues.store import Store

_LOG: Final = logging.getLogger(__name__)

_API: Final = f"/apis/{names.DRA_API_VERSION}"
_TEMPLATES: Final = "resourceclaimtemplates"
_STEP_S: Final = 0.25
_UNUSED_S: Final = 60.0
"""The time after which a template that no pod names is removed. The next pod often comes soon."""
_RETRY_S: Final = 10.0
"""The time after which a template is made again that a refusal or another program prevented."""
_ENDED: Final = ("Succeeded", "Failed")


class Templates:
    """clock: monotonic seconds."""

    def __init__(self, kube: Kube, clock: Callable[[], float]) -> None:
        self._kube, self._clock = kube, clock
        self._pods = Store(_wanted)
        self._slices, self._there = (Store[Json](lambda raw: raw) for _ in range(2))
        asking = {"labelSelector": names.LABEL_CLAIM_TEMPLATE}
        ours = {"labelSelector": ",".join(f"{key}={of}" for key, of in templates.LABELS.items())}
        driver = {"fieldSelector": f"spec.driver={names.DRA_DRIVER}"}
        self._reflectors = (
            Reflector(kube, "/api/v1/pods", self._pods, query=asking),
            Reflector(kube, f"{_API}/{_TEMPLATES}", self._there, query=ours),
            Reflector(kube, f"{_API}/resourceslices", self._slices, query=driver),
        )
        self._used_at_s: dict[str, float] = {}
        """When a pod last named the template, by NAMESPACE/NAME."""
        self._retry_at_s: dict[str, float] = {}
        """When the template may be made again, by NAMESPACE/NAME."""

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"watch {reflector.path}")
            for reflector in self._reflectors:
                await reflector.wait_synced()
            while True:
                await self._step(self._clock())
                await asyncio.sleep(_STEP_S)

    async def _step(self, now_s: float) -> None:
        sizes = templates.sizes(self._slices.values())
        self._retry_at_s = {key: at_s for key, at_s in self._retry_at_s.items() if at_s > now_s}
        wanted = {key for of_pod in self._pods.values() for key in of_pod}
        self._used_at_s = {
            key: now_s if key in wanted else self._used_at_s.get(key, now_s)
            for key in wanted | self._there.keys()
        }
        for key, used_at_s in self._used_at_s.items():
            if key in self._retry_at_s:
                continue
            namespace, _, name = key.partition("/")
            made, there = templates.template(name, sizes), self._there.get(key)
            try:
                if there is not None:
                    stale = made is not None and templates.lacks_size(there, made)
                    if stale or now_s - used_at_s >= _UNUSED_S:
                        await self._delete(there)
                        self._there.pop(key, None)  # before the watch reports it
                        _LOG.info(Line("template removed", namespace=namespace, name=name))
                elif made is not None:
                    await self._kube.post(f"{_API}/namespaces/{namespace}/{_TEMPLATES}", made)
                    _LOG.info(Line("template made", namespace=namespace, name=name))
                    self._retry_at_s[key] = now_s + _RETRY_S
            except KubeError as error:
                self._retry_at_s[key] = now_s + _RETRY_S
                _LOG.warning(Line("template", namespace=namespace, name=name, error=error))

    async def _delete(self, raw: Json) -> None:
        """Delete the template, unless another one has its name by now."""
        metadata = raw["metadata"]
        path = f"{_API}/namespaces/{metadata['namespace']}/{_TEMPLATES}/{metadata['name']}"
        await self._kube.delete(path, {"preconditions": {"uid": metadata["uid"]}})


def _wanted(pod: Json) -> frozenset[str] | None:
    """Return NAMESPACE/NAME of the templates that the pod names; None if it has ended."""
    if at(pod, "status").get("phase") in _ENDED:
        return None
    namespace, claims = pod["metadata"]["namespace"], objects(at(pod, "spec"), "resourceClaims")
    named = (each.get("resourceClaimTemplateName") for each in claims)
    return frozenset(f"{namespace}/{name}" for name in named if name)
