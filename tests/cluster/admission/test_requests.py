"""The real API server judges requests as written, by the scheduler's rules."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import DRY, PODS, tried, verdict
from tests.cluster.admission.requested import HALF, any_pod, asking, container, pod, workloads
from tests.cluster.server import MERGE_PATCH, Server
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_SEEDED: Final = 400

GPU, CORE, MEMORY, RATIO, SHARED = (
    names.RESOURCE_GPU,
    names.RESOURCE_CORE,
    names.RESOURCE_MEMORY,
    names.RESOURCE_MEMORY_RATIO,
    names.RESOURCE_SHARED,
)
ISOLATION: Final = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}


# --- malformed requests


def hint(scope: str) -> dict[str, str]:
    text = '{"gpu": {"selector": {"matchLabels": {"a": "b"}}, "requiredTopologyScope": %s}}'
    return {names.ANNOTATION_ALLOCATE_HINT: text % scope}


WRONG: Final[dict[str, Json]] = {
    "an old name": pod(asking({"kubernetes.io/gpu": 50})),
    "an old name, of none": pod(asking({**HALF, "kubernetes.io/gpu-memory": 0})),
    "an old name beside the new": pod(asking({GPU: 50, "kubernetes.io/gpu": 50})),
    "an old name in an init container": pod(
        container(), asking({"kubernetes.io/gpu-core": 50}, "first", init=True)
    ),
    "a misspelt name": pod(asking({"koordinator.sh/gpu-mem": "8Gi"})),
    "another misspelt name": pod(asking({"koordinator.sh/gpu-shared": 1, RATIO: 50})),
    "a name in capitals": pod(asking({"koordinator.sh/GPU": 50})),
    "a misspelt old name": pod(asking({"kubernetes.io/Gpu.shared": 1})),
    "gpu and anything": pod(asking({GPU: 50, CORE: 50})),
    "core alone": pod(asking({CORE: 50})),
    "shared alone": pod(asking({SHARED: 2})),
    "memory and ratio": pod(asking({MEMORY: "8Gi", RATIO: 50})),
    "too many GPUs": pod(asking({SHARED: 17, RATIO: 1700})),
    "too many whole GPUs": pod(asking({GPU: 1700})),
    "a percentage between whole GPUs": pod(asking({GPU: 150})),
    "a ratio between whole GPUs": pod(asking({RATIO: 101})),
    "a percentage that does not divide": pod(asking({SHARED: 2, RATIO: 51})),
    "more than the GPUs have": pod(asking({SHARED: 2, RATIO: 202})),
    "less than a percent of a GPU": pod(asking({CORE: 1, RATIO: 200})),
    "core of more GPUs than the ratio's": pod(asking({CORE: 200, RATIO: 50})),
    "less than a byte of a GPU": pod(asking({SHARED: 4, MEMORY: 3})),
    "more bytes than any GPU": pod(asking({MEMORY: "300Ti"})),
    "of an old name": pod(asking({"kubernetes.io/gpu": "1500m"})),
    "of an init container": pod(container(), asking({GPU: 150}, "first", init=True)),
    "of the second container": pod(container(), asking({GPU: 150}, "second")),
    "another provider of isolation": pod(
        asking(HALF), labels={names.LABEL_ISOLATION_PROVIDER: "mps"}
    ),
    "another policy": pod(asking(HALF), annotations={names.ANNOTATION_POLICY: "Spread"}),
    "joint allocation": pod(asking(HALF), annotations={names.ANNOTATION_JOINT_ALLOCATE: "{}"}),
    "a scope that there is not": pod(asking(HALF), annotations=hint('"Socket"')),
    "two GPUs on one": pod(asking({SHARED: 2, RATIO: 100}), annotations=hint('  \n"Device"')),
    "partitions": pod(asking(HALF), annotations={names.ANNOTATION_PARTITION_SPEC: "{}"}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_malformed_request_is_refused_with_the_schedulers_message(
    server: Server, what: str
) -> None:
    answer = tried(server, WRONG[what])
    assert (answer.status, answer.policy) == (422, "gpuslice-requests"), answer.body
    assert answer.text == verdict(WRONG[what])


@pytest.mark.parametrize("kind", workloads(pod()))
@pytest.mark.parametrize(
    "what",
    [
        "core alone",
        "of an init container",
        "an old name",
        "a misspelt name",
    ],
)
def test_the_same_request_in_a_template_is_refused(server: Server, kind: str, what: str) -> None:
    path, workload = workloads(WRONG[what])[kind]
    answer = server.ask("POST", path + DRY, workload)
    assert (answer.status, answer.policy) == (422, "gpuslice-requests"), answer.body
    assert answer.text == verdict(WRONG[what])


@pytest.mark.parametrize("kind", workloads(pod()))
def test_a_template_with_a_valid_request_or_none_is_admitted(server: Server, kind: str) -> None:
    for raw in (pod(asking(HALF), labels=ISOLATION), pod(scheduler="default-scheduler")):
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
        raw = any_pod(chance)
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


@pytest.mark.parametrize(
    "text",
    [
        *(hint(f'"{scope}"')[names.ANNOTATION_ALLOCATE_HINT] for scope in ("NUMANode", "Device")),
        '{"gpu":{"requiredTopologyScope":""}}',
        '{"gpu":{"requiredTopologyScope":"Socket","requiredTopologyScope":"Node"}}',
        "{}",
    ],
)
def test_hints_that_are_honoured(server: Server, text: str) -> None:
    raw = pod(asking(HALF), annotations={names.ANNOTATION_ALLOCATE_HINT: text})
    assert verdict(raw) == ""
    assert tried(server, raw).done


def test_hints_that_the_policy_cannot_parse_are_refused_by_the_scheduler(server: Server) -> None:
    for text in ("{", '{"rdma":{"selector":{"a":1}}}', '{"gpu":{"requiredTopologyScope":1}}'):
        raw = pod(asking(HALF), annotations={names.ANNOTATION_ALLOCATE_HINT: text})
        assert tried(server, raw).done
        assert verdict(raw)


@pytest.mark.parametrize("raw", [{"limits": HALF}, {"requests": HALF, "limits": HALF}])
def test_limits_alone_are_a_request(server: Server, raw: Json) -> None:
    assert tried(server, pod(container(resources=raw))).done


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
            ("annotations", hint('"Socket"')),
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
    path, workload = workloads(WRONG["core alone"])["Deployment"]
    server.ask("DELETE", f"{kind}/{name}")
    until(lambda: server.ask("POST", path, workload).done, "the policy follows")
    until(lambda: server.ask("POST", PODS, {**WRONG["core alone"]}).done, "the policy follows")
    again = {key: there[key] for key in ("apiVersion", "kind", "spec")}
    again["metadata"] = {key: there["metadata"][key] for key in ("name", "labels", "annotations")}
    assert server.ask("POST", kind, again).done
    until(lambda: tried(server, WRONG["shared alone"]).policy == name, "the policy follows")
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
