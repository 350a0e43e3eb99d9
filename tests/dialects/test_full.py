"""How many pods of KAI's one GPU of 46068 MiB has room for, and why the next one waits."""

from __future__ import annotations

import pytest

from tests.dialects.pods import bound, create, kai, limit_bytes, waits
from tests.e2e.whole import Whole
from tests.support import until

pytestmark = pytest.mark.e2e

GPUS = "1x46068Mi"


@pytest.mark.parametrize(
    ("annotations", "fit", "size_bytes", "reason"),
    [
        ({"gpu-memory": "2000"}, 23, 2097152000, "slice 68 MiB of the 2000 MiB requested"),
        ({"gpu-fraction": "0.1"}, 10, (46068 << 20) // 10, "no GPU with enough free memory"),
    ],
    ids=["2000 MiB", "0.1"],
)
def test_a_gpu_is_filled_and_the_next_pod_waits(
    empty: Whole, annotations: dict[str, str], fit: int, size_bytes: int, reason: str
) -> None:
    names = [f"p{number}" for number in range(fit + 1)]
    create(empty, [kai(name, annotations) for name in names])
    until(lambda: len(bound(empty)) == fit, f"{fit} pods have a node")
    (late,) = set(names) - set(bound(empty))
    assert reason in waits(empty, late)
    for pod in sorted(bound(empty)):
        empty.ready(pod)
    assert limit_bytes(empty, sorted(bound(empty))[-1]) == size_bytes
    assert len(bound(empty)) == fit
