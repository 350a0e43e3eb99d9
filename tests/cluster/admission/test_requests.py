"""The real API server, as installed by default, judges requests as the scheduler does. The table of
pods: test_rows.py."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import DRY, PODS, tried, verdict
from tests.cluster.admission.random_pods import any_of_koordinator
from tests.cluster.server import MERGE_PATCH, Server
from tests.requests.koordinator_rows import CORE, CORE_ALONE, RATIO, SHARED, hint
from tests.requests.pods import HALF, asking, pod, workloads
from tests.requests.rows import GPU, GPUMEM, MEMORY, VCORES, VNUMBER
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_SEEDED: Final = 400
_ALONE: Final = CORE_ALONE.pod
_OFF: Final = (
    pod(asking({MEMORY: 1024})),
    pod(asking({}), asking({VNUMBER: 1}, "second")),
    pod(asking({MEMORY: 1}, "first", init=True)),
    pod(asking({VCORES: 200})),
    pod(asking({GPU: 1, GPUMEM: 3000})),
    pod(asking({**HALF, GPUMEM: 3000})),
)
"""Of dialects that are off."""


def test_a_dialect_that_is_off_is_refused_with_its_switch(server: Server) -> None:
    for raw in _OFF:
        answer = tried(server, raw)
        assert (answer.status, answer.policy) == (422, "gpuslice-dialects"), answer.body
        assert answer.text == verdict(raw)
        assert " is off; set dialects." in answer.text
    # Device plugins allocate whole GPUs where HAMi's dialect is off.
    assert tried(server, pod(asking({GPU: 1, "amd.com/gpu": 1}))).done
    assert tried(server, pod(asking({MEMORY: 1, GPUMEM: 1}), scheduler="other")).done


def test_an_overhead_in_gpus_is_refused(server: Server) -> None:
    """A template has it as a pod has its RuntimeClass's overhead. Elsewhere the API server itself
    refuses it."""
    raw = pod(asking(HALF))
    raw["spec"]["overhead"] = {"cpu": "1", RATIO: "1"}
    path, workload = workloads(raw)["Deployment"]
    answer = tried(server, workload, path)
    assert (answer.text, answer.policy) == (verdict(raw), "gpuslice-dialects"), answer.body


@pytest.mark.parametrize("kind", workloads(pod()))
def test_what_is_invalid_in_a_template_is_refused(server: Server, kind: str) -> None:
    for raw, policy in ((_ALONE, "gpuslice-requests"), (_OFF[0], "gpuslice-dialects")):
        path, workload = workloads(raw)[kind]
        answer = tried(server, workload, path)
        assert (answer.text, answer.policy) == (verdict(raw), policy), answer.body


@pytest.mark.parametrize("kind", workloads(pod()))
def test_a_template_with_a_valid_request_or_none_is_admitted(server: Server, kind: str) -> None:
    labels = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
    for raw in (pod(asking(HALF), labels=labels), pod(scheduler="default-scheduler")):
        path, workload = workloads(raw)[kind]
        assert server.ask("POST", path + DRY, workload).done


def test_a_controller_without_a_template(server: Server) -> None:
    """The only kind whose schema allows the template to be absent."""
    path, workload = workloads(pod())["ReplicationController"]
    del workload["spec"]["template"]
    assert server.ask("POST", path + DRY, workload).policy == ""


@pytest.mark.parametrize("seed", range(4))
def test_the_api_server_and_the_scheduler_agree(server: Server, seed: int) -> None:
    """Random pods of all kinds: an accepted pod is accepted by both, a refused one is refused by
    both. With one error the messages are equal; of several errors each may report another first."""
    chance = random.Random(seed)
    same = accepted = 0
    for _ in range(_SEEDED // 4):
        raw = any_of_koordinator(chance)
        answer = tried(server, raw)
        if answer.done:
            # As the API server writes it: "1k" for 1000.
            assert verdict(answer.body) == "", raw
            accepted += 1
        elif answer.policy:
            assert answer.policy in ("gpuslice-requests", "gpuslice-dialects"), answer.body
            assert verdict(raw), (answer.text, raw)
            same += answer.text == verdict(raw)
    assert accepted > _SEEDED // 40
    assert same > _SEEDED // 10


def test_hints_that_the_policy_cannot_parse_are_refused_by_the_scheduler(server: Server) -> None:
    for text in ("{", '{"rdma":{"selector":{"a":1}}}', '{"gpu":{"requiredTopologyScope":1}}'):
        raw = pod(asking(HALF), annotations={names.ANNOTATION_ALLOCATE_HINT: text})
        assert tried(server, raw).done
        assert verdict(raw)


def test_the_label_and_the_annotation_are_judged_where_they_change(server: Server) -> None:
    """Objects that existed before remain changeable; a pod's resources cannot change at all."""
    made = server.ask("POST", PODS, pod(asking(HALF), name="changing"))
    assert made.done, made.text
    try:
        at = f"{PODS}/changing"
        for key, value in (
            ("labels", {names.LABEL_ISOLATION_PROVIDER: "mps"}),
            ("annotations", {names.ANNOTATION_POLICY: "Spread"}),
            ("annotations", {names.ANNOTATION_PARTITION_SPEC: ""}),
            ("annotations", hint('{"requiredTopologyScope": "Socket"}')),
        ):
            answer = server.ask("PATCH", at, {"metadata": {key: value}}, MERGE_PATCH)
            assert (answer.status, answer.policy) == (422, "gpuslice-requests"), answer.body
        spread = {"metadata": {"annotations": {names.ANNOTATION_POLICY: "spread"}}}
        assert server.ask("PATCH", at, spread, MERGE_PATCH).done
        assert server.ask("PATCH", at, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH).done
    finally:
        server.ask("DELETE", f"{PODS}/changing?gracePeriodSeconds=0")


def test_what_was_there_before_the_policies_can_be_scaled_changed_and_ended(
    installed: ControlPlane, server: Server
) -> None:
    """The policy binding is removed for a moment to create objects as if it had never existed."""
    name = "gpuslice-requests"
    kind = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    there = server.ask("GET", f"{kind}/{name}").body
    path, workload = workloads(_ALONE)["Deployment"]
    server.ask("DELETE", f"{kind}/{name}")
    until(lambda: server.ask("POST", path, workload).done, "the policy follows")
    until(lambda: server.ask("POST", PODS, _ALONE).done, "the policy follows")
    again = {key: there[key] for key in ("apiVersion", "kind", "spec")}
    again["metadata"] = {key: there["metadata"][key] for key in ("name", "labels", "annotations")}
    assert server.ask("POST", kind, again).done
    until(lambda: tried(server, pod(asking({SHARED: 2}))).policy == name, "the policy follows")
    try:
        finalized = {"metadata": {"finalizers": ["example.org/wait"]}}
        scaled = {"spec": {"replicas": 0}}
        assert server.ask("PATCH", f"{path}/w", scaled, MERGE_PATCH).done
        assert server.ask("PATCH", f"{PODS}/p", finalized, MERGE_PATCH).done
        assert server.ask("PATCH", f"{PODS}/p", {"metadata": {"finalizers": []}}, MERGE_PATCH).done
        changed = {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}
        assert server.ask("PATCH", f"{path}/w", changed, MERGE_PATCH).policy == name
    finally:
        assert server.ask("DELETE", f"{path}/w").done
        assert server.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=0").done


# --- cost


def test_a_pod_of_32_containers_is_within_the_budget(server: Server) -> None:
    """Sixteen init and sixteen main containers with a hundred variables each; the error is in the
    last ones."""
    env = [{"name": f"A_VARIABLE_OF_THE_PROGRAM_{n}", "value": "x" * 40} for n in range(100)]
    share = {SHARED: 1, CORE: 2, RATIO: 2}
    inits = [asking(dict(share), f"i{n}", env=env, init=True) for n in range(16)]
    mains = [asking(dict(share), f"c{n}", env=env) for n in range(16)]
    annotations = {f"example.org/{n}": "x" * 500 for n in range(100)}
    raw = pod(*inits, *mains, annotations=annotations)
    answer = tried(server, raw)
    assert answer.done, answer.text
    raw["spec"]["containers"][-1]["resources"] = {"limits": {RATIO: 150}}
    assert tried(server, raw).text == verdict(raw)
    raw["spec"]["containers"][-1]["resources"] = {"limits": share}
    raw["spec"]["containers"][-1]["env"] = [*env, {"name": names.ENV_MEMORY_LIMIT, "value": "1"}]
    assert "container c15: env CUDA_DEVICE_MEMORY_LIMIT" in tried(server, raw).text
