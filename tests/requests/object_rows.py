"""Rows of objects other than pods: ResourceQuotas, and workloads with annotations in a wrong place.

Each has the path of its collection, the object, and the refusal with its policy, or "".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuslice.contract.dialects import HAMI, KOORDINATOR, VOLCANO
from tests.requests.pods import Json, of_kai, pod, workloads


class ObjectRow(NamedTuple):
    path: str
    raw: Json
    says: str = ""
    policy: str = ""


def _quota(key: str, instead: str = "") -> ObjectRow:
    """Return a row of a quota that limits this resource. instead: the end of the refusal."""
    raw = {"metadata": {"name": "q"}, "spec": {"hard": {key: "2000"}}}
    says = (
        f"spec.hard[{key}]: invalid value 2k: must be absent, as no limits of this resource are"
        f" counted; use {instead}"
    )
    of_quotas = "/api/v1/namespaces/default/resourcequotas"
    raw |= {"apiVersion": "v1", "kind": "ResourceQuota"}
    return ObjectRow(of_quotas, raw, *((says, "gpuslice-quotas") if instead else ()))


_ONCE: Final = ", which counts an amount once for all GPUs of a container"
QUOTAS: Final = [
    *(
        _quota(f"limits.{name}", f"requests.{name}" + (_ONCE if counted_once else ""))
        for name, counted_once in (
            ("nvidia.com/gpu", False),
            ("nvidia.com/gpumem", True),
            ("nvidia.com/gpucores", True),
            (KOORDINATOR.resources[0], False),
            (VOLCANO.resources[3], True),
        )
    ),
    *map(_quota, (f"requests.{HAMI.resources[2]}", "requests.nvidia.com/gpu", "limits.cpu")),
]


def _annotated(kind: str, raw: Json, says: str = "") -> ObjectRow:
    """Return a row of a workload that itself has KAI's annotation."""
    path, workload = workloads(raw)[kind]
    workload["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    return ObjectRow(path, workload, says, "gpuslice-kai" if says else "")


_MISPLACED: Final = (
    "metadata.annotations[gpu-fraction]: invalid value 0.5: must be an annotation of the pod"
    " template; that of a workload itself has no effect"
)
WORKLOADS: Final = [
    *(_annotated(kind, of_kai({}, whole="main"), _MISPLACED) for kind in workloads(pod())),
    _annotated("Deployment", of_kai({"gpu-fraction": "0.25"})),
    _annotated("Deployment", pod()),
]

OBJECTS: Final = [*QUOTAS, *WORKLOADS]
