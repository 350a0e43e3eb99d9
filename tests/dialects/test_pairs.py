"""Pairs of equal Volcano pods, created at once: each pod gets what its own annotation states.

Volcano's device plugin finds the pod by its amount, and may give one pod the other's GPU. Here the
scheduler's decisions, containerd, NRI and the agent are real. The kubelet is simulated, because a
real one would take most of an hour for 1,000 pods on two cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import dialects
from lab.node.catalogue import BUSYBOX_IMAGE, Catalogue
from lab.node.containerd_config import Options
from lab.node.cri import Process
from lab.node.lab import CLUSTER_FILES, Lab
from scheduler.core.place import Placement, place
from scheduler.decisions.state import Assumed, State
from scheduler.kubernetes import binding, requests
from tests.requests.pods import asking, of_volcano
from tests.scheduler import calls, objects

pytestmark = pytest.mark.node

_GPUS = 8
_GPU_MIB = 11178
_MORE_THAN_HALF_MIB = 6000
_PAIRS = 500
_AT_ONCE = _GPUS // 2
"""Pairs that exist at once. Each pair needs two GPUs, because its pods do not fit on one."""
_SCRIPT = "env; nvidia-smi --query-gpu=uuid --format=csv,noheader; cuda-probe"


@pytest.fixture(scope="module")
def lab(build_dir: Path) -> Iterator[Lab]:
    assert build_dir.is_dir()
    patient = Options(request_timeout_s=8)
    with Lab([_GPU_MIB << 20] * _GPUS, load=False, options=patient) as lab:
        lab.load(Catalogue(CLUSTER_FILES).of_a_cluster())
        lab.start_agent()
        yield lab


def _bound(state: State, uid: str, amount_mib: int) -> Mapping[str, str]:
    """Return the annotations of the Binding of a pod that requests this amount."""
    pod = of_volcano(asking({dialects.VOLCANO_MEMORY: amount_mib}))
    read = requests.read(pod, frozenset({dialects.VOLCANO.name}))
    assert read is not None
    row = state.fleet.row_of("n0")
    found = place(state.fleet, read.request, row)
    assert isinstance(found, Placement), found
    outputs = read.outputs(found, state.fleet.gpus[row], time.time_ns())
    annotations = binding.annotations_of(found, outputs)
    state.assume(uid, Assumed(found, annotations, 60.0), uid)
    return annotations


def _run(lab: Lab, name: str, amount_mib: int, annotations: Mapping[str, str]) -> str:
    """Run the pod, check its GPU against its annotations, and return the GPU's index."""
    with lab.pod(name, annotations) as pod:
        done = pod.run("main", Process(BUSYBOX_IMAGE)).exec(["sh", "-c", _SCRIPT])
    *lines, uuid, line = done.out.splitlines()
    index = annotations[dialects.VOLCANO_INDEX]
    assert {
        f"NVIDIA_VISIBLE_DEVICES={index}",
        f"{dialects.VOLCANO_ALLOCATED}={amount_mib}",
        f"{dialects.VOLCANO_TOTAL}={_GPU_MIB}",
    } <= set(lines)
    assert uuid == lab.gpus[int(index)].uuid
    probed: Any = json.loads(line)
    assert (probed["total"], probed["filled"], probed["more"]) == (amount_mib << 20, 0, 2)
    return index


@pytest.mark.timeout(1800)
def test_each_of_two_equal_pods_has_its_own_gpu(lab: Lab) -> None:
    state = State()
    gpus = [objects.gpu(gpu.uuid, gpu.minor, f"{_GPU_MIB}Mi") for gpu in lab.gpus]
    calls.add_node(state, "n0", *gpus)
    with ThreadPoolExecutor(2 * _AT_ONCE) as at_once:
        for first in range(0, _PAIRS, _AT_ONCE):
            pods = [
                (f"pair-{number}-{which}", _MORE_THAN_HALF_MIB + number)
                for number in range(first, first + _AT_ONCE)
                for which in "ab"
            ]
            bound = {name: _bound(state, name, amount) for name, amount in pods}
            running = [at_once.submit(_run, lab, *pod, bound[pod[0]]) for pod in pods]
            assert len({each.result() for each in running}) == _GPUS
            for name, _ in pods:
                state.forget(name)
