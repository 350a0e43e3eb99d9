"""The real API server refuses pods of a dialect that is off, with the scheduler's text."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gpuslice.contract import names
from gpuslice.contract.dialects import (
    HAMI_GPU,
    HAMI_MEMORY,
    VOLCANO_MEMORY,
    VOLCANO_VGPU_CORES,
    VOLCANO_VGPU_NUMBER,
)
from tests.cluster.admission.judging import tried, verdict
from tests.cluster.admission.requested import HALF, asking, container, pod, workloads
from tests.cluster.server import Server

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_POLICY: Final = "gpuslice-dialects"
OFF: Final[dict[str, Json]] = {
    "Volcano's": pod(asking({VOLCANO_MEMORY: 1024})),
    "Volcano's in a second container": pod(container(), asking({VOLCANO_VGPU_NUMBER: 1}, "second")),
    "Volcano's in an init container": pod(asking({VOLCANO_MEMORY: 1}, "first", init=True)),
    "Volcano's, invalid besides": pod(asking({VOLCANO_VGPU_CORES: 200})),
    "HAMi's": pod(asking({HAMI_GPU: 1, HAMI_MEMORY: 3000})),
    "Koordinator's and HAMi's": pod(asking({**HALF, HAMI_MEMORY: 3000})),
}


@pytest.mark.parametrize("what", OFF)
def test_a_dialect_that_is_off_is_refused_with_its_switch(server: Server, what: str) -> None:
    answer = tried(server, OFF[what])
    assert (answer.status, answer.policy) == (422, _POLICY), answer.body
    assert answer.text == verdict(OFF[what])
    assert " is off; set dialects." in answer.text


@pytest.mark.parametrize("kind", workloads(pod()))
def test_the_same_request_in_a_template_is_refused(server: Server, kind: str) -> None:
    raw = OFF["Volcano's"]
    path, workload = workloads(raw)[kind]
    answer = tried(server, workload, path)
    assert (answer.text, answer.policy) == (verdict(raw), _POLICY), answer.body


def test_an_overhead_in_gpus_is_refused(server: Server) -> None:
    """A template has it as a pod has its RuntimeClass's overhead. Elsewhere the API server itself
    refuses it."""
    raw = pod(asking(HALF))
    raw["spec"]["overhead"] = {"cpu": "1", names.RESOURCE_MEMORY_RATIO: "1"}
    path, workload = workloads(raw)["Deployment"]
    answer = tried(server, workload, path)
    assert (answer.text, answer.policy) == (verdict(raw), _POLICY), answer.body


def test_pods_without_a_share_and_of_other_schedulers_pass(server: Server) -> None:
    """Device plugins allocate whole GPUs where HAMi's dialect is off."""
    assert tried(server, pod(asking({HAMI_GPU: 1, "amd.com/gpu": 1}))).done
    mixed = asking({VOLCANO_MEMORY: 1, HAMI_MEMORY: 1})
    assert tried(server, pod(mixed, scheduler="other")).done
