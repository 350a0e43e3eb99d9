"""Rows of objects other than pods: ResourceQuotas, and workloads with annotations in a wrong place.

Each has the path of its collection, the object, and the refusal with its policy, or "". warns: the
end of the API server's warning, or "".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuslice.contract.dialects import HAMI, KOORDINATOR, VOLCANO
from tests.requests.kai_rows import LIMIT
from tests.requests.pods import Json, asking, of_kai, pod, workloads


class ObjectRow(NamedTuple):
    path: str
    raw: Json
    says: str = ""
    policy: str = ""
    warns: str = ""


def _quota(key: str, instead: str = "", **beside: str) -> ObjectRow:
    """Return a row of a quota that limits this resource. instead: the end of the refusal."""
    raw = {"metadata": {"name": "q"}, "spec": {"hard": {key: "2000", **beside}}}
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
    *map(_quota, ("requests.nvidia.com/gpu", "requests.volcano.sh/vgpu-number", "limits.cpu")),
    *(
        _quota(f"requests.{name}")._replace(
            warns=f"spec.hard[requests.{name}] counts an amount once for all GPUs of a container;"
            f" limit the number of GPUs too: requests.{of_gpus}"
        )
        for name, of_gpus in (
            ("nvidia.com/gpumem", "nvidia.com/gpu"),
            ("volcano.sh/vgpu-cores", "volcano.sh/vgpu-number"),
        )
    ),
    _quota("requests.nvidia.com/gpumem", **{"requests.nvidia.com/gpu": "4"}),
]
OLD_QUOTA: Final = _quota("limits.nvidia.com/gpumem")
"""A quota from before the policies."""
OLD_QUOTA.raw["metadata"]["name"] = "old"
OLD_WARNING: Final = (
    "spec.hard[limits.nvidia.com/gpumem] has no effect, as no limits of this resource are counted;"
    " use requests.nvidia.com/gpumem"
)


def _annotated(
    kind: str, raw: Json, says: str = "", key: str = "gpu-fraction", value: str = "0.5"
) -> ObjectRow:
    """Return a row of a workload that itself has KAI's annotation."""
    path, workload = workloads(raw)[kind]
    workload["metadata"]["annotations"] = {key: value}
    return ObjectRow(path, workload, says, "gpuslice-kai" if says else "")


_MISPLACED: Final = (
    "metadata.annotations[gpu-fraction]: invalid value 0.5: must be an annotation of the pod"
    " template; that of a workload itself has no effect"
)
WORKLOADS: Final = [
    *(_annotated(kind, of_kai({}, whole="main"), _MISPLACED) for kind in workloads(pod())),
    _annotated("Deployment", of_kai({"gpu-fraction": "0.25"})),
    _annotated("Deployment", pod(), _MISPLACED),
    _annotated(
        *("Deployment", pod(), _MISPLACED.replace("gpu-fraction", LIMIT).replace("0.5", "1Gi")),
        *(LIMIT, "1Gi"),
    ),
    _annotated("Deployment", pod(), "", "nvidia.com/container.main.other"),
    _annotated("Deployment", pod(scheduler="other")),
]

PODS: Final = [
    ObjectRow(
        "/api/v1/namespaces/default/pods",
        pod(asking({"aliyun.com/gpu-mem": 4}), scheduler=scheduler),
        warns="container main: resource name: invalid value aliyun.com/gpu-mem: must be"
        " koordinator.sh/gpu-memory, in bytes, on nodes of gpuslice",
    )
    for scheduler in ("default-scheduler", "other")
]

_ENLARGED: Final = (
    "metadata.annotations[gpu-fraction]: forbidden to change in a bound pod, which keeps its share;"
    " create a new pod"
)
_MORE: Final = asking({HAMI.resources[2]: 4096})
CHANGES: Final[list[tuple[Json, Json, str]]] = [
    *(
        (of_kai({"gpu-fraction": "0.25"}), {"metadata": {"annotations": changed}}, _ENLARGED)
        for changed in ({"gpu-fraction": "0.75"}, {"gpu-fraction": None})
    ),
    (pod(asking({HAMI.resources[2]: 3001})), {"spec": {"containers": [_MORE]}}, ""),
]
"""A pod, a patch of its share once it is bound, and the refusal ("": the API server's own)."""

OBJECTS: Final = [*QUOTAS, *WORKLOADS, *PODS]
