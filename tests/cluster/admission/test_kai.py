"""The real API server refuses what KAI's admission refuses, in its words, as the scheduler does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pytest

from gpuslice.contract.dialects import KAI, KOORDINATOR
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import DRY, PODS, enforced, tried, verdict
from tests.cluster.admission.requested import workloads
from tests.cluster.server import MERGE_PATCH, Server
from tests.scheduler.dialects.kai_pods import (
    ACCEPTED,
    LIMIT,
    MEMORY,
    REFUSED,
    REQUEST,
    pod,
)

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_NAME: Final = "gpuslice-kai"
_SEEDED: Final = 200
_ENABLED: Final = frozenset({KOORDINATOR.name, KAI.name})


@pytest.fixture(scope="module", autouse=True)
def in_force(installed: ControlPlane, server: Server) -> Iterator[None]:
    raw, _ = REFUSED["mps alone"]
    with enforced(installed, server, _NAME, "global.gpuSharing=true", raw):
        yield


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_has_kais_message(server: Server, what: str) -> None:
    raw, text = REFUSED[what]
    answer = tried(server, raw)
    assert (answer.status, answer.policy) == (422, _NAME), answer.body
    assert answer.text == text == verdict(raw, _ENABLED)


@pytest.mark.parametrize("text", ["1e9999999", "12345678901234567890e9999999"])
def test_a_quantity_of_millions_of_digits_costs_the_api_server_nothing(
    installed: ControlPlane, server: Server, text: str
) -> None:
    """Kubernetes compares quantities in decimal: seconds of a processor for each, and minutes for
    two digits more of the exponent."""
    raw = pod({LIMIT: text, REQUEST: "1Gi"})
    program = psutil.Process(installed.apiserver.pid)
    before_s = program.cpu_times().user
    assert tried(server, raw).policy == _NAME
    assert program.cpu_times().user - before_s < 2


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_kai_accepts(server: Server, what: str) -> None:
    assert tried(server, ACCEPTED[what]).done
    assert verdict(ACCEPTED[what], _ENABLED) == ""


@pytest.mark.parametrize("kind", workloads(pod({})))
@pytest.mark.parametrize("what", ["mps alone", "a container that there is not"])
def test_the_same_request_in_a_template_is_refused(server: Server, kind: str, what: str) -> None:
    raw, text = REFUSED[what]
    path, workload = workloads(raw)[kind]
    answer = server.ask("POST", path + DRY, workload)
    assert (answer.policy, answer.text) == (_NAME, text), answer.body


def test_pods_of_other_schedulers_pass(server: Server) -> None:
    raw, _ = REFUSED["mps alone"]
    raw = {**raw, "spec": {**raw["spec"], "schedulerName": "other"}}
    assert tried(server, raw).done


def test_an_annotation_is_judged_where_it_changes(server: Server) -> None:
    raw = pod({"gpu-fraction": "0.5"})
    raw["metadata"]["name"] = "changing"
    assert server.ask("POST", PODS, raw).done
    try:
        at = f"{PODS}/changing"
        for key, value in (
            ("gpu-fraction", "1.5"),
            ("gpu-fraction-container-name", "other"),
            (LIMIT, "1Gi"),
        ):
            changed = {"metadata": {"annotations": {key: value}}}
            assert server.ask("PATCH", at, changed, MERGE_PATCH).policy == _NAME
        for key, value in (("gpu-fraction", "0.25"), ("a", "b")):
            changed = {"metadata": {"annotations": {key: value}}}
            assert server.ask("PATCH", at, changed, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{PODS}/changing?gracePeriodSeconds=0")


_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "gpu-fraction": ("0.5", "1", "NaN", ".25", "0.5_0", "1e-7", "5e-1", "x"),
    "gpu-memory": ("2000", "0", "4Gi", "268435457"),
    "gpu-fraction-num-devices": ("1", "2", "17", "0"),
    "gpu-fraction-container-name": ("main", "first", "other"),
    "gpu-fraction-container-type": ("InitContainer", "RegularContainer"),
    "mps": ("true", "false"),
    LIMIT: ("1Gi", "2Gi", "1", "x"),
    REQUEST: ("1Gi", "1024Mi", "0"),
    "nvidia.com/container.second.gpu-memory.limit": ("1Gi",),
    "nvidia.com/container.main.unknown": ("1Gi",),
}


@pytest.mark.parametrize("seed", range(2))
def test_the_api_server_and_the_scheduler_agree(server: Server, seed: int) -> None:
    """They agree on random pods. Of several errors each may report another one first."""
    chance = random.Random(seed)
    same = accepted = 0
    for _ in range(_SEEDED // 2):
        keys = chance.sample(sorted(_VALUES), chance.choice((1, 1, 2, 2, 3, 4)))
        annotations = {key: chance.choice(_VALUES[key]) for key in keys}
        raw = pod(annotations, chance.choice(("", "", "", "main", "first")))
        answer = tried(server, raw)
        said = verdict(raw, _ENABLED)
        assert answer.done == (said == ""), (answer.body, said, raw)
        accepted += answer.done
        same += answer.text == said
    assert accepted > _SEEDED // 20
    assert same > _SEEDED // 4


def test_a_pod_of_twenty_containers_is_within_the_budget(server: Server) -> None:
    annotations = {f"example.org/{n}": "x" * 500 for n in range(100)}
    raw = pod({**annotations, MEMORY.format("c19", "limit"): "1Gi", "mps": "true"})
    env = [{"name": f"A_VARIABLE_OF_THE_PROGRAM_{n}", "value": "x" * 40} for n in range(100)]
    for kind in ("initContainers", "containers"):
        made = [{"name": f"{kind[0]}{n}", "image": "none", "env": env} for n in range(20)]
        raw["spec"][kind] = made
    answer = tried(server, raw)
    assert answer.done, answer.body
    raw["metadata"]["annotations"]["gpu-fraction-container-name"] = "c0"
    assert tried(server, raw).text.endswith("does not match container name c19")
