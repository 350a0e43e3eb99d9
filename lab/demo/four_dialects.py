"""A chapter of the demo: pods written for four systems on one GPU.

Volcano's and HAMi's are files of docs/examples; KAI's sleeps where the file's container lists its
GPU and ends; Koordinator's is a pod that runs already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lab.demo.live import kubectl, probed
from lab.demo.report import Report
from lab.demo.seed import EXAMPLES

_SCRIPT: Final = "cuda-probe; nvidia-smi --query-gpu=uuid --format=csv,noheader"
_MIB: Final = 1 << 20
_OUT_OF_MEMORY: Final = 2
_FILES: Final = ("volcano/gpu-pod1.yaml", "hami/gpu-pod.yaml")
_KAI: Final = EXAMPLES / "kai" / "gpu-memory.yaml"


@dataclass(frozen=True, slots=True)
class SharedPod:
    """request: as its manifest has it."""

    name: str
    system: str
    request: str
    limit_mib: int


OTHER_SYSTEMS: Final = (
    SharedPod("gpu-sharing", "KAI", "gpu-memory: 2000", 2000),
    SharedPod("gpu-pod1", "Volcano", "volcano.sh/gpu-memory: 1024", 1024),
    SharedPod("gpu-pod", "HAMi", "nvidia.com/gpumem: 3000", 3000),
)


def chapter(
    report: Report, show: Callable[..., str], host: SharedPod, leaving: str, gpu: str
) -> None:
    """show: runs acts, prints them, returns the last one's output. host: the pod that stays on
    `gpu`; leaving: the one that makes room."""
    report.chapter("7  Pods of four systems on one GPU")
    delete = kubectl("delete", "pod", leaving, "--grace-period=1")
    show(delete.shown, delete)
    texts = [(EXAMPLES / name).read_text() for name in _FILES]
    texts.append(_KAI.read_text().replace("nvidia-smi, -L", "sleep, 1d"))
    apply = kubectl("apply", "-f", "-", given="---\n".join(texts))
    pods = [f"pod/{each.name}" for each in OTHER_SYSTEMS]
    ready = kubectl("wait", "--for=condition=Ready", *pods, "--timeout=100s")
    show("$ kubectl apply -f -   # pods of Volcano, HAMi and KAI", apply, ready)
    rows, taken, gpus = [], {}, set()
    for pod in (host, *OTHER_SYSTEMS):
        seen = show(
            f"$ kubectl exec {pod.name} -- cuda-probe",
            kubectl("exec", pod.name, "--", "sh", "-c", _SCRIPT),
        )
        found = probed(seen)
        taken[pod.name] = found["total"] / _MIB, found["filled"], found["more"]
        gpus.add(seen.splitlines()[-1])
        rows.append((pod.name, pod.system, pod.request, f"{found['total'] // _MIB} MiB"))
    report.table(("pod", "system", "request", "memory inside"), rows)
    report.check(
        "each sees and allocates what it requests, and not 512 bytes more",
        all(
            taken[pod.name] == (pod.limit_mib, 0, _OUT_OF_MEMORY) for pod in (host, *OTHER_SYSTEMS)
        ),
        taken,
    )
    report.check("all have the same GPU", gpus == {gpu}, gpus)
