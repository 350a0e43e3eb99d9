"""The real API server, as installed by default, judges requests as the scheduler does."""

from __future__ import annotations

from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import NAMES_POLICY, STOCK
from scheduler.dialects.table import DEFAULT
from tests.cluster.admission.judging import DRY, PODS, agreed, tried, verdict
from tests.cluster.admission.random_pods import any_of_koordinator
from tests.cluster.server import Server
from tests.requests.koordinator_rows import CORE_ALONE, RATIO, SHARED, hint
from tests.requests.pods import HALF, asking, pod, workloads
from tests.requests.rows import GPU, GPUMEM, MEMORY, VCORES, VNUMBER
from tests.support import until

pytestmark = pytest.mark.cluster

_OFF: Final = (
    pod(asking({MEMORY: 1024})),
    pod(asking({}), asking({VNUMBER: 1}, "second")),
    pod(asking({MEMORY: 1}, "first", init=True)),
    pod(asking({VCORES: 200})),
    pod(asking({GPU: 1, GPUMEM: 3001})),
    pod(asking({**HALF, GPUMEM: 3001})),
)
"""Pods of dialects that are off."""


def test_a_dialect_that_is_off_is_refused_with_its_switch(server: Server) -> None:
    for raw in _OFF:
        answer = tried(server, raw)
        assert (answer.status, answer.policy) == (422, "gpuslice-dialects"), answer.body
        assert answer.text == verdict(raw)
        assert " is off; set dialects." in answer.text
    # Device plugins allocate whole GPUs where HAMi's dialect is off.
    assert tried(server, pod(asking({GPU: 1, "amd.com/gpu": 1}))).done
    assert tried(server, pod(asking({MEMORY: 1, GPUMEM: 1}), scheduler="other")).done


_LABELLED: Final = pod(
    asking(HALF), labels={names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}
)
_OVERHEAD: Final = pod(asking(HALF))
_OVERHEAD["spec"]["overhead"] = {"cpu": "1", RATIO: "1"}
_GRANTED: Final = {names.ANNOTATION_GRANTS: "x"}
_RESERVED: Final = [{"name": names.ENV_MEMORY_LIMIT, "value": "1"}]
_REFUSED: Final = (
    ("gpuslice-dialects", _OFF[0]),
    ("gpuslice-dialects", _OVERHEAD),
    ("gpuslice-environment", pod(asking(HALF, env=_RESERVED))),
    ("gpuslice-allocations", pod(asking(HALF), annotations=_GRANTED)),
    (NAMES_POLICY, pod(asking(HALF), scheduler=STOCK)),
)


@pytest.mark.parametrize("kind", workloads(pod()))
def test_a_template_is_judged_as_its_pods(server: Server, kind: str) -> None:
    """A workload is refused if its pods would be. A template may have no grants, although a copied
    pod may. A template may have no overhead in GPUs, which the API server itself refuses in pods.
    The policies ignore annotations of the workload itself."""
    for raw in (_LABELLED, pod(scheduler=STOCK)):
        path, workload = workloads(raw)[kind]
        workload["metadata"]["annotations"] = _GRANTED
        assert tried(server, workload, path).done
    for policy, raw in _REFUSED:
        path, workload = workloads(raw)[kind]
        answer, pods = tried(server, workload, path), tried(server, raw)
        assert answer.policy == policy, answer.body
        assert pods.done or answer.text == (verdict(raw) or pods.text)


def test_a_controller_without_a_template(server: Server) -> None:
    """Only a ReplicationController may have no template."""
    path, workload = workloads(pod())["ReplicationController"]
    del workload["spec"]["template"]
    assert server.ask("POST", path + DRY, workload).policy == ""


@pytest.mark.parametrize("seed", range(4))
def test_the_api_server_and_the_scheduler_agree(server: Server, seed: int) -> None:
    accepted, _, same = agreed(server, any_of_koordinator, seed, 100, DEFAULT)
    assert accepted > 10 and same > 40


def test_hints_that_the_policy_cannot_parse_are_refused_by_the_scheduler(server: Server) -> None:
    for text in ("{", '{"rdma":{"selector":{"a":1}}}', '{"gpu":{"requiredTopologyScope":1}}'):
        raw = pod(asking(HALF), annotations={names.ANNOTATION_ALLOCATE_HINT: text})
        assert tried(server, raw).done
        assert verdict(raw)


def test_the_label_and_the_annotation_are_judged_where_they_change(server: Server) -> None:
    """A patch is refused if it makes the pod's label or annotation invalid, and else accepted."""
    with server.made(PODS, pod(asking(HALF), name="changing")) as path:
        for what, value in (
            ("labels", {names.LABEL_ISOLATION_PROVIDER: "mps"}),
            ("annotations", {names.ANNOTATION_POLICY: "Spread"}),
            ("annotations", {names.ANNOTATION_COMPUTE: "Fair"}),
            ("annotations", {f"{names.ANNOTATION_COMPUTE_PREFIX}other": "fair"}),
            ("annotations", {names.ANNOTATION_PARTITION_SPEC: ""}),
            ("annotations", hint('{"requiredTopologyScope": "Socket"}')),
        ):
            answer = server.patch(path, {"metadata": {what: value}})
            assert (answer.status, answer.policy) == (422, "gpuslice-requests"), answer.body
        spread = {names.ANNOTATION_POLICY: "spread"}
        assert server.patch(path, {"metadata": {"annotations": spread}}).done
        assert server.patch(path, {"metadata": {"labels": {"a": "b"}}}).done


def test_what_was_there_before_the_policies_can_be_scaled_changed_and_ended(
    installed: ControlPlane, server: Server
) -> None:
    """The test removes the policy binding for a while, in order to create such objects."""
    name = "gpuslice-requests"
    kind = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    there = server.get(f"{kind}/{name}")
    path, workload = workloads(CORE_ALONE.pod)["Deployment"]
    server.ask("DELETE", f"{kind}/{name}")
    until(lambda: server.ask("POST", path, workload).done, "the policy follows")
    until(lambda: server.ask("POST", PODS, CORE_ALONE.pod).done, "the policy follows")
    metadata = {key: there["metadata"][key] for key in ("name", "labels", "annotations")}
    server.make(kind, {**there, "metadata": metadata})
    until(lambda: tried(server, pod(asking({SHARED: 2}))).policy == name, "the policy follows")
    try:
        assert server.patch(f"{path}/w", {"spec": {"replicas": 0}}).done
        for finalizers in (["example.org/wait"], []):
            assert server.patch(f"{PODS}/p", {"metadata": {"finalizers": finalizers}}).done
        changed = {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}
        assert server.patch(f"{path}/w", changed).policy == name
    finally:
        assert server.ask("DELETE", f"{path}/w").done
        assert server.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=0").done
