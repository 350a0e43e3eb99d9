"""The real API server judges HAMi's pods by the scheduler's rules, and sets their scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import dialects, names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from tests.cluster.admission.judging import rendered, tried, verdict
from tests.cluster.admission.requested import asking, container, pod, workloads
from tests.cluster.installing import serve
from tests.cluster.server import Answer, Server
from tests.support import until
from tools import chart

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
_API: Final = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
_POLICY: Final = "gpuslice-hami"
_ENABLED: Final = frozenset({dialects.KOORDINATOR.name, dialects.HAMI.name})
_ON: Final = "dialects.hami.enabled=true"
GPU, MEMORY, PERCENT, CORES, PRIORITY = dialects.HAMI.resources
PRIVILEGED: Final[Json] = {"securityContext": {"privileged": True}}


def policies(mutates: bool = True) -> list[Json]:
    """HAMi's, in force. mutates: as for a cluster with MutatingAdmissionPolicies."""
    shown = ["--show-only=templates/admission/hami.yaml"]
    if mutates:
        shown += ["--show-only=templates/admission/hami-scheduler.yaml", f"--api-versions={_API}"]
    made = chart.render(f"--set={_ON}", *shown)
    return manifests.in_force(each for each in yaml.safe_load_all(made) if each)


@pytest.fixture(scope="module")
def server(installed: ControlPlane) -> Iterator[Server]:
    """HAMi's policies are there for this module only."""
    ours = policies()
    installed.apply_json(*ours, *rendered(_ON, "gpuslice-dialects"))
    with Server(installed) as api:
        asked, wrong = stock(asking({GPU: 1})), pod(asking({GPU: 17}))
        right = pod(asking({MEMORY: 3000}))
        until(lambda: scheduler_of(tried(api, asked)) == names.SCHEDULER_NAME, "set")
        until(lambda: tried(api, wrong).policy == _POLICY, "the policy is in force")
        until(lambda: tried(api, right).done, "the dialect is on")
        yield api
    for each in ours:
        installed.kubectl("delete", each["kind"], each["metadata"]["name"])
    serve(installed)


def stock(*containers: Json, **metadata: Any) -> Json:
    """Return a pod as HAMi's users write it: without a schedulerName."""
    raw = pod(*containers, **metadata)
    del raw["spec"]["schedulerName"]
    return raw


def scheduler_of(answer: Answer) -> str:
    return str(answer.body.get("spec", {}).get("schedulerName", answer.text))


def annotated(key: str, value: str) -> Json:
    return pod(asking({MEMORY: 3000}), annotations={key: value})


WRONG: Final[dict[str, Json]] = {
    "bytes for MiB": pod(asking({GPU: 1, MEMORY: "8Gi"})),
    "more than any GPU has": pod(asking({GPU: 1, MEMORY: "8Pi"})),
    "more than a GPU's memory": pod(asking({GPU: 1, PERCENT: 101})),
    "more than a GPU's memory, beside MiB": pod(asking({GPU: 1, PERCENT: 101, MEMORY: 1})),
    "more than a GPU's compute": pod(asking({GPU: 1, CORES: 101})),
    "too many GPUs": pod(asking({GPU: 17})),
    "no GPU": pod(asking({GPU: 0, MEMORY: 3000})),
    "another priority": pod(asking({GPU: 1, PRIORITY: 2})),
    "a priority of nothing": pod(asking({PRIORITY: 1})),
    "an init container": pod(container(), asking({CORES: 200}, "first", init=True)),
    "the second container": pod(asking({GPU: 1}), asking({CORES: 200}, "second")),
    "a privileged container": pod(asking({GPU: 1}, **PRIVILEGED)),
    "a privileged neighbour": pod(asking({GPU: 1}), container("other", **PRIVILEGED)),
    "two errors": pod(asking({GPU: 17, CORES: 101}, **PRIVILEGED)),
    "another policy of GPUs": annotated(dialects.HAMI_GPU_POLICY, "numa"),
    "another policy of nodes": annotated(dialects.HAMI_NODE_POLICY, "Spread"),
    "no model": annotated(dialects.HAMI_USE_TYPE, ""),
    "no denied model": annotated(dialects.HAMI_NO_USE_TYPE, " , "),
    "no UUID": annotated(dialects.HAMI_USE_UUID, ","),
    "no denied UUID": annotated(dialects.HAMI_NO_USE_UUID, ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_hami_clamps_or_drops_is_refused_with_the_schedulers_message(
    server: Server, what: str
) -> None:
    answer = tried(server, WRONG[what])
    assert (answer.status, answer.policy) == (422, _POLICY), answer.body
    assert answer.text == verdict(WRONG[what], _ENABLED)


@pytest.mark.parametrize("kind", workloads(pod()))
def test_the_same_request_in_a_template_is_refused(server: Server, kind: str) -> None:
    path, workload = workloads(WRONG["an init container"])[kind]
    answer = server.ask("POST", f"{path}?dryRun=All", workload)
    assert (answer.policy, answer.text) == (_POLICY, verdict(WRONG["an init container"], _ENABLED))


@pytest.mark.parametrize(
    "raw",
    [
        stock(asking({GPU: 1, MEMORY: 3000, CORES: 30})),
        stock(container(resources={"limits": {GPU: "2"}})),
        stock(container(), asking({MEMORY: "8k"}, "first", init=True)),
        stock(asking({PERCENT: 50, PRIORITY: 1}), annotations={dialects.HAMI_USE_TYPE: "A100,"}),
        pod(asking({GPU: 1}), scheduler="default-scheduler"),
    ],
)
def test_a_pod_that_names_no_scheduler_gets_ours(server: Server, raw: Json) -> None:
    assert verdict(raw, _ENABLED) == ""
    assert scheduler_of(tried(server, raw)) == names.SCHEDULER_NAME


@pytest.mark.parametrize("kind", workloads(pod()))
def test_a_template_keeps_its_text(server: Server, kind: str) -> None:
    path, workload = workloads(pod(asking({GPU: 1}), scheduler="default-scheduler"))[kind]
    assert server.ask("POST", f"{path}?dryRun=All", workload).done


@pytest.mark.parametrize(
    "raw",
    [
        stock(container()),
        stock(asking({GPU: 0})),
        stock(asking({GPU: 1}), labels={"hami.io/webhook": "ignore"}),
    ],
)
def test_other_pods_keep_the_stock_scheduler(server: Server, raw: Json) -> None:
    assert scheduler_of(tried(server, raw)) == "default-scheduler"


def test_pods_of_other_schedulers_are_not_judged(server: Server) -> None:
    for scheduler in ("kai-scheduler", "mine"):
        raw = pod(asking({GPU: 17}), scheduler=scheduler)
        assert scheduler_of(tried(server, raw)) == scheduler


def test_a_pod_that_names_its_node_is_refused(server: Server) -> None:
    raw = stock(asking({GPU: 1}))
    raw["spec"]["nodeName"] = "n1"
    answer = tried(server, raw)
    assert answer.policy == _POLICY
    assert answer.text.startswith("nodeName: invalid value 'n1': must be empty")


def test_without_the_mutation_pods_and_templates_must_name_the_scheduler(
    installed: ControlPlane, server: Server
) -> None:
    """Kubernetes before 1.36 has no such mutation."""
    binding = ("mutatingadmissionpolicybinding", "gpuslice-hami-scheduler")
    before = policies(mutates=False)
    refused = (
        "schedulerName: invalid value 'default-scheduler': must be gpuslice-scheduler in a pod that"
        " requests a share of a GPU; default-scheduler would start it without a GPU"
    )
    raw = stock(asking({GPU: 1}))
    path, workload = workloads(pod(asking({GPU: 1}), scheduler="default-scheduler"))["Job"]
    installed.kubectl("delete", *binding)
    try:
        until(lambda: tried(server, raw).text == refused, "no pod is changed")
        installed.apply_json(*before)
        until(
            lambda: server.ask("POST", f"{path}?dryRun=All", workload).text == refused,
            "templates are judged",
        )
    finally:
        installed.apply_json(*policies())
        until(lambda: scheduler_of(tried(server, raw)) == names.SCHEDULER_NAME, "set")
