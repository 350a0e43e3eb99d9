"""The real API server refuses pods of a dialect that is off, with the scheduler's text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from gpuslice.contract.dialects import (
    DIALECTS,
    HAMI_GPU,
    HAMI_MEMORY,
    VOLCANO_MEMORY,
    VOLCANO_VGPU_CORES,
    VOLCANO_VGPU_NUMBER,
    Dialect,
)
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import DRY, tried, verdict
from tests.cluster.admission.requested import HALF, asking, container, pod, workloads
from tests.cluster.installing import serve
from tests.cluster.server import MERGE_PATCH, Server
from tests.support import until
from tools import chart

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
    answer = server.ask("POST", path + DRY, workload)
    assert (answer.text, answer.policy) == (verdict(raw), _POLICY), answer.body


def test_an_old_template_can_be_scaled(server: Server) -> None:
    path, workload = workloads(pod())["Deployment"]
    assert server.ask("POST", path, workload).done
    try:
        changed = {"spec": {"template": {"spec": OFF["Volcano's"]["spec"]}}}
        assert server.ask("PATCH", f"{path}/w{DRY}", changed, MERGE_PATCH).policy == _POLICY
        assert server.ask("PATCH", f"{path}/w", {"spec": {"replicas": 0}}, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{path}/w")


def test_an_overhead_in_gpus_is_refused(server: Server) -> None:
    """A template has it as a pod has its RuntimeClass's overhead. Elsewhere the API server itself
    refuses it."""
    raw = pod(asking(HALF))
    raw["spec"]["overhead"] = {"cpu": "1", names.RESOURCE_MEMORY_RATIO: "1"}
    path, workload = workloads(raw)["Deployment"]
    answer = server.ask("POST", path + DRY, workload)
    assert (answer.text, answer.policy) == (verdict(raw), _POLICY), answer.body


def test_pods_without_a_share_and_of_other_schedulers_pass(server: Server) -> None:
    """Device plugins allocate whole GPUs where HAMi's dialect is off."""
    assert tried(server, pod(asking({HAMI_GPU: 1, "amd.com/gpu": 1}))).done
    mixed = asking({VOLCANO_MEMORY: 1, HAMI_MEMORY: 1})
    assert tried(server, pod(mixed, scheduler="other")).done


def test_a_toy_dialect_is_a_table_to_the_policy_too(
    installed: ControlPlane, server: Server, tmp_path: Path
) -> None:
    """It has annotations and resources, without a schedulerName of its own."""
    by, of = "toy.example/eighths", "toy.example/thing"
    toy = Dialect("toy", "dialects.toy.enabled", annotations=(by,), resources=(of,))
    copied = tmp_path / "chart"
    shutil.copytree(chart.CHART, copied)
    (copied / "files" / chart.DIALECTS_FILE.name).write_text(chart.dialects([*DIALECTS, toy]))
    command = chart.template("--show-only=templates/admission/dialects.yaml")
    given = [str(copied) if each == str(chart.CHART) else each for each in command]
    rendered = yaml.safe_load_all(subprocess.check_output(given, text=True))
    installed.apply_json(*manifests.in_force(each for each in rendered if each))
    by_annotation = pod(container(), annotations={by: "1"})
    try:
        until(lambda: not tried(server, by_annotation).done, "the policy knows the toy")
        off = ": must be absent, as the dialect toy is off; set dialects.toy.enabled to true"
        assert tried(server, by_annotation).text == f"metadata.annotations[{by}]{off}"
        assert tried(server, pod(asking({of: 1}))).text == f"container main: {of}{off}"
        assert tried(server, pod(asking(HALF))).done
    finally:
        serve(installed)
