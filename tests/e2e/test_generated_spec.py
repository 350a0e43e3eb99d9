"""A cluster whose host has no CDI spec: the agent, in the chart's pod, has nvidia-ctk write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.host.cdi_generator import FILE
from tests.e2e.whole import HALF, Whole, running
from tests.support import until

pytestmark = pytest.mark.e2e

_GPU_BYTES = 23040 << 20


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running("2x23040Mi") as cluster:
        yield cluster


def test_a_share_by_the_spec_that_the_agents_pod_generates(whole: Whole) -> None:
    (spec,) = whole.directory.glob("gpuslice-lab-*/sim/cdi/nvidia.json")
    spec.unlink()
    selected = ("-n", "gpuslice-system", "-l", "app.kubernetes.io/name=gpuslice-agent")
    whole.kubectl("delete", "pod", *selected, "--wait=true")
    until(whole.well, "the cluster is well")
    whole.run_pod("half", HALF)
    taken = json.loads(whole.inside("half", "cuda-probe"))
    assert (taken["total"], taken["filled"]) == (_GPU_BYTES // 2, 0)
    nodes = whole.inside("half", "ls /dev").split()
    assert {"nvidiactl", "nvidia-uvm"} <= set(nodes)
    assert len({"nvidia0", "nvidia1"} & set(nodes)) == 1
    log = whole.kubectl("logs", "-n", "gpuslice-system", "ds/gpuslice-agent")
    assert 'msg="CDI spec generated"' in log and FILE in log
