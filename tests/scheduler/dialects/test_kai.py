"""KAI's dialect beyond its table of rows: what the Binding adds, and the pod's event."""

from __future__ import annotations

import pytest

from gpuslice.contract.dialects import KAI
from scheduler.core.fleet import Gpu
from scheduler.core.place import Placement, Share
from scheduler.kubernetes import requests
from tests.requests.kai_rows import HALF, LIMIT
from tests.requests.pods import of_kai
from tests.support import GIB, MIB

ON = frozenset({KAI.name})
A100 = 46068 * MIB


def reading(annotations: dict[str, str]) -> requests.ParsedRequest:
    found = requests.read(of_kai(annotations), ON)
    assert found is not None and found.request.isolation
    return found


def test_mps_has_no_effect_and_is_reported() -> None:
    (notice,) = reading({**HALF, "mps": "true"}).notices
    assert notice.startswith("metadata.annotations[mps]: true has no effect: ")
    assert not reading({**HALF, "mps": "false"}).notices


@pytest.mark.parametrize(
    ("annotations", "portion"),
    [
        ({"gpu-fraction": "0.333"}, "0.33"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, "0.50"),
        ({"gpu-fraction": "0.005"}, "0.01"),
        ({"gpu-memory": "2000", "gpu-fraction-container-name": "second"}, "0.04"),
        ({LIMIT: "20Gi", "gpu-fraction-num-devices": "2"}, "0.44"),
    ],
)
def test_the_outputs(annotations: dict[str, str], portion: str) -> None:
    found = reading(annotations)
    (only,) = found.request.containers
    gpus = [Gpu("GPU-a", 0, 80 * GIB), Gpu("GPU-b", 1, A100), Gpu("GPU-c", 2, 80 * GIB)]
    shares = [
        Share(only.name, gpu.uuid, gpu.minor, only.bytes_of(gpu.total_bytes), None)
        for gpu in gpus[1 : 1 + only.gpus]
    ]
    outputs = found.outputs(Placement("n", shares, []), gpus, 0)
    assert outputs.annotations == dict.fromkeys(KAI.written_annotations, "Fraction")
    assert outputs.environment == {only.name: dict.fromkeys(KAI.environment, portion)}
    assert outputs.visible_devices == "uuid"
