"""One GPU of a fleet has room for a pod, and kube-scheduler's sample of nodes usually misses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from bench.scheduling import missed
from lab.cluster.controlplane import ControlPlane
from tests.support import measured

pytestmark = pytest.mark.cluster

_NODES: Final = 400
_PODS: Final = 20
_WITHIN_S: Final = 1.0


@measured
def test_a_pod_that_fits_outside_of_the_sample_is_bound_within_a_second(tmp_path: Path) -> None:
    """10 pods that fit anywhere arrive each second beside it."""

    async def run(plane: ControlPlane) -> missed.Times:
        async with missed.scene(plane, _NODES) as scene:
            return await scene.measure(_PODS, 10.0)

    with ControlPlane(tmp_path / "plane") as plane:
        waits_s = asyncio.run(run(plane)).waits_s()
    assert len(waits_s) > _PODS // 4
    assert waits_s[-1] < _WITHIN_S
