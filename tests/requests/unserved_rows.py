"""Rows of pods that no scheduler serves: each has the text of its Event.

The test is tests/scheduler/decisions/test_unserved.py. Only Koordinator's dialect is on.
"""

from __future__ import annotations

from typing import Final

from gpuslice.contract.dialects import HAMI, VOLCANO
from tests.requests.pods import HALF, Json, asking, of_kai, of_volcano, pod
from tests.requests.row import Row

GPU, GPUMEM = HAMI.resources[0], HAMI.resources[2]
OF_HAMI: Final = pod(asking({GPU: 1, GPUMEM: 3000}), scheduler=HAMI.scheduler_name)
TRIED: Final = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def _row(raw: Json, way: str) -> Row:
    served = f"; to serve it {way} in gpuslice's chart" if way else ""
    return Row(
        raw,
        f"spec.schedulerName: invalid value {raw['spec']['schedulerName']}: must be a name that a"
        " scheduler serves, but none serves the pod; gpuslice serves gpuslice-scheduler" + served,
    )


UNSERVED: Final = [
    _row(OF_HAMI, "set dialects.hami.enabled to true"),
    _row(pod(asking({GPU: 1}), scheduler=HAMI.scheduler_name), "set dialects.hami.enabled to true"),
    # Tried while the dialect was on.
    _row({**OF_HAMI, "status": {"conditions": [TRIED]}}, "set dialects.hami.enabled to true"),
    _row(of_volcano(asking({VOLCANO.resources[0]: 1024})), "set dialects.volcano.enabled to true"),
    _row(of_kai({"gpu-fraction": "0.5"}), "set global.gpuSharing to true"),
    _row(of_kai({"gpu-fraction": "2"}), "set global.gpuSharing to true"),  # refused where served
    _row(pod(asking(HALF), scheduler="koord-scheduler"), "add it to schedulerNames"),
    _row(pod(asking(HALF), scheduler="other"), ""),
]
