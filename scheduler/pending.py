"""A pod that is to be placed: what it asks for, and who it is.

Pure. With `scheduler.requests` and `scheduler.translate`, what knows a pod's fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler import requests
from scheduler.core.request import Request
from scheduler.dialects import RequestError

Json = Mapping[str, Any]

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")


@dataclass(frozen=True, slots=True)
class Pending:
    """version: the pod's resourceVersion when it was read. profile: its schedulerName. priority:
    the number that kube-scheduler orders its queue by.
    prefers: it likes some nodes better than others, which is kube-scheduler's to weigh.
    request: None for a pod that asks for no share, or for what is refused; refusal: why.
    """

    uid: str
    version: str
    profile: str
    prefers: bool
    request: Request | None
    refusal: str = ""
    namespace: str = ""
    name: str = ""
    priority: int = 0

    @property
    def whose(self) -> str:
        return f"{self.namespace}/{self.name}"


def read(pod: Json) -> Pending:
    """Never raises for what the pod's author wrote."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    request, refusal = None, ""
    try:
        request = requests.request(pod)
    except RequestError as error:
        refusal = str(error)
    return Pending(
        uid=str(metadata.get("uid", "")),
        version=str(metadata.get("resourceVersion", "")),
        profile=str(spec.get("schedulerName", "")),
        prefers=any(_preferences(spec)),
        request=request,
        refusal=refusal,
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        priority=int(spec.get("priority") or 0),
    )


def was_refused(pod: Json) -> bool:
    """Whether kube-scheduler found no node for it when it tried last."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


def _preferences(spec: Json) -> Iterator[object]:
    affinity = spec.get("affinity") or {}
    for kind in _AFFINITIES:
        yield (affinity.get(kind) or {}).get(_PREFERRED)
    for constraint in spec.get("topologySpreadConstraints") or ():
        yield constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
