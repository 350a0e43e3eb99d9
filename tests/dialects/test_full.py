"""How many of KAI's pods fit on one GPU of 46068 MiB, and why the next pod waits."""

from __future__ import annotations

import pytest

from tests.dialects.pods import asleep, bound, create, limit_bytes, waits
from tests.e2e.whole import Whole
from tests.support import MIB, until

pytestmark = pytest.mark.e2e

GPUS = "1x46068Mi"


def test_a_gpu_is_filled_and_the_next_pod_waits(empty: Whole) -> None:
    pod, names = asleep("kai/gpu-memory.yaml"), [f"p{number}" for number in range(24)]
    pod["spec"]["containers"][0] |= {"image": "busybox", "imagePullPolicy": "IfNotPresent"}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    create(empty, [{**pod, "metadata": {**pod["metadata"], "name": name}} for name in names])
    until(lambda: len(bound(empty)) == 23, "23 pods have a node")
    (late,) = set(names) - set(bound(empty))
    assert "slice 68 MiB of the 2000 MiB requested" in waits(empty, late)
    for name in sorted(bound(empty)):
        empty.ready(name)
    assert limit_bytes(empty, sorted(bound(empty))[-1]) == 2000 * MIB
    assert len(bound(empty)) == 23
