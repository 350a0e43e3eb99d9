"""The API server with all dialects on judges the table of pods as the scheduler does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import psutil
import pytest

from gpuslice.contract import dialects, names
from gpuslice.contract.dialects import HAMI, KAI, VOLCANO
from lab.cluster.controlplane import ControlPlane
from lab.cluster.manifests import NAMES_POLICY, STOCK
from tests.cluster.admission.judging import (
    ALL_ON,
    MUTATES,
    PODS,
    SWITCHES,
    agreed,
    all_dialects,
    policies,
    tried,
    verdict,
)
from tests.cluster.admission.random_pods import RANDOM
from tests.cluster.server import Answer, Json, Server
from tests.requests import kai_rows
from tests.requests.koordinator_rows import CORE, MISSPELT, OF_AN_INIT, RATIO, SHARED
from tests.requests.object_rows import CHANGES, OBJECTS, OLD_QUOTA, OLD_WARNING, ObjectRow
from tests.requests.pods import (
    HALF,
    asking,
    binding,
    container,
    of_kai,
    of_volcano,
    pod,
    unnamed,
    workloads,
)
from tests.requests.row import Row, identity
from tests.requests.rows import FIRST, GPU, GRANTED, REFUSED, UNREADABLE
from tests.support import until

pytestmark = pytest.mark.cluster

_SEEDED: Final = 150
_FROM_MAP: Final = {"configMapKeyRef": {"name": "p-shared-gpu-0", "key": "x"}}


def kai(*env: Json) -> Json:
    return of_kai(kai_rows.HALF, container(env=list(env)))


def volcano(*env: Json, scheduler: str = VOLCANO.scheduler_name) -> Json:
    return pod(asking({dialects.VOLCANO_MEMORY: 1024}, env=list(env)), scheduler=scheduler)


def hami(*env: Json) -> Json:
    return pod(asking({GPU: 1, dialects.HAMI_MEMORY: 3000}, env=list(env)))


def koordinator(*env: Json) -> Json:
    return pod(asking(HALF, env=list(env)))


def scheduler_of(answer: Answer) -> str:
    return str(answer.body.get("spec", {}).get("schedulerName", answer.text))


@pytest.fixture(scope="module", autouse=True)
def all_on(installed: ControlPlane, server: Server) -> Iterator[None]:
    """Wait until all policies are in force, because the API server loads them one by one."""

    def in_force() -> bool:
        wrong = tried(server, volcano({"name": names.ENV_MEMORY_LIMIT, "value": "1"}))
        return (
            all(tried(server, row.pod).policy == policy for policy, row in FIRST.items())
            and all(
                (got := tried(server, row.raw, row.path)).policy == row.policy
                and row.warns in got.warning
                for row in OBJECTS
            )
            and all(tried(server, made()).done for made in (kai, volcano, hami, koordinator))
            and wrong.policy == "gpuslice-environment"
            and "volcano or hami-scheduler in a pod" in tried(server, volcano(scheduler=STOCK)).text
            and scheduler_of(tried(server, unnamed(asking({GPU: 1})))) == names.SCHEDULER_NAME
        )

    with server.made(OLD_QUOTA.path, OLD_QUOTA.raw), all_dialects(installed):
        until(in_force, "each policy of the dialects is in force")
        yield


# --- requests


@pytest.mark.parametrize("row", REFUSED, ids=identity)
def test_a_refusal_has_the_schedulers_message(server: Server, row: Row) -> None:
    answer = tried(server, row.pod)
    assert (answer.status, answer.policy, answer.text) == (422, row.policy, row.says), answer.body


@pytest.mark.parametrize("row", GRANTED, ids=identity)
def test_requests_that_can_be_satisfied_are_admitted(server: Server, row: Row) -> None:
    answer = tried(server, row.pod)
    assert answer.done, answer.text


@pytest.mark.parametrize("row", UNREADABLE, ids=identity)
def test_an_amount_that_is_no_number_is_refused_by_the_api_server_itself(
    server: Server, row: Row
) -> None:
    answer = tried(server, row.pod)
    assert (answer.status in (400, 422), answer.policy) == (True, ""), answer.body


@pytest.mark.parametrize("kind", workloads(pod()))
def test_the_same_request_in_a_template_is_refused(server: Server, kind: str) -> None:
    for row in (*FIRST.values(), OF_AN_INIT, MISSPELT):
        path, workload = workloads(row.pod)[kind]
        answer = tried(server, workload, path)
        assert (answer.policy, answer.text) == (row.policy, row.says), answer.body


@pytest.mark.parametrize("kind", RANDOM)
def test_the_api_server_and_the_scheduler_agree(server: Server, kind: str) -> None:
    accepted, refused, same = agreed(server, RANDOM[kind], 1, _SEEDED, ALL_ON)
    assert accepted + refused == _SEEDED, "the API server itself refuses none"
    assert accepted > _SEEDED // 20
    assert same > _SEEDED // 4


def test_pods_of_other_schedulers_are_not_judged(server: Server) -> None:
    for policy in ("gpuslice-volcano", "gpuslice-hami", "gpuslice-kai"):
        raw = FIRST[policy].pod
        elsewhere = {**raw, "spec": {**raw["spec"], "schedulerName": "other"}}
        assert scheduler_of(tried(server, elsewhere)) == "other"
    assert tried(server, pod(container(), scheduler=STOCK, annotations={"mps": "true"})).done
    for name in (STOCK, "other"):
        annotations = {"gpu-memory": "16Gi", "gpu-fraction": "all"}
        raw = pod(container(), scheduler=name, annotations=annotations)
        assert scheduler_of(tried(server, raw)) == name


def test_a_request_is_judged_where_it_changes(server: Server) -> None:
    collection, workload = workloads(pod(asking({dialects.VOLCANO_MEMORY: 200})))["Deployment"]
    raw = of_kai({"gpu-fraction": "0.5"})
    with server.made(collection, workload) as deployment, server.made(PODS, raw) as path:
        assert server.patch(deployment, {"spec": {"replicas": 0}}).done
        changed = {"spec": {"template": {"spec": FIRST["gpuslice-hami"].pod["spec"]}}}
        assert server.patch(deployment, changed).policy == "gpuslice-hami"
        for key, value, policy in (
            ("gpu-fraction", "1.5", "gpuslice-kai"),
            (kai_rows.LIMIT, "1Gi", "gpuslice-kai"),
            ("gpu-fraction", "0.25", ""),
        ):
            annotated = {"metadata": {"annotations": {key: value}}}
            assert server.patch(path, annotated).policy == policy


@pytest.mark.parametrize("row", OBJECTS, ids=lambda row: row.says[:60] or "accepted")
def test_other_objects_are_refused_or_admitted(server: Server, row: ObjectRow) -> None:
    answer = tried(server, row.raw, row.path)
    assert (answer.policy, answer.text if row.says else "") == (row.policy, row.says), answer.body
    assert answer.done == (not row.says)
    if not row.says:
        ours = answer.warning.removesuffix('"')
        assert ours.endswith(row.warns) if row.warns else not ours, answer.warning


def test_a_quota_that_has_such_a_limit_already_can_be_changed(server: Server) -> None:
    """Another resource may be changed, with a warning. No further limit of a share may be added."""
    quota = f"{OLD_QUOTA.path}/old"
    answer = server.patch(quota, {"spec": {"hard": {"limits.cpu": "1"}}})
    assert answer.done and answer.warning.endswith(f'{OLD_WARNING}"')
    more = {"spec": {"hard": {f"limits.{dialects.HAMI_CORES}": "1"}}}
    assert server.patch(quota, more).policy == "gpuslice-quotas"


@pytest.mark.parametrize(("raw", "change", "says"), CHANGES)
def test_the_share_of_a_bound_pod_does_not_change(
    installed: ControlPlane, server: Server, raw: Json, change: Json, says: str
) -> None:
    """The API server itself refuses other amounts in a pod's resources."""
    with server.made(PODS, raw) as path, Server(installed, "scheduler") as scheduler:
        if says:
            assert server.patch(path, {"metadata": {"annotations": {"gpu-fraction": "0.5"}}}).done
        assert scheduler.ask("POST", f"{path}/binding", binding("p", "n", {})).done
        for where in (path,) if says else (path, f"{path}/resize"):
            answer = server.patch(where, change)
            assert not answer.done
            assert (answer.policy, answer.text if says else "") == (
                "gpuslice-kai" if says else "",
                says,
            ), answer.body
        assert server.patch(path, {"metadata": {"annotations": {"note": "any"}}}).done


# --- cost


@pytest.mark.parametrize("text", ["1e9999999", "12345678901234567890e9999999"])
def test_a_quantity_of_millions_of_digits_costs_the_api_server_nothing(
    installed: ControlPlane, server: Server, text: str
) -> None:
    """Kubernetes compares such quantities in decimal. Each comparison would take seconds, or
    minutes where the exponent has two more digits."""
    raw = of_kai({kai_rows.LIMIT: text, kai_rows.REQUEST: "1Gi"})
    program = psutil.Process(installed.apiserver.pid)
    before_s = program.cpu_times().user
    assert tried(server, raw).policy == "gpuslice-kai"
    assert program.cpu_times().user - before_s < 2


_ENV: Final = [{"name": f"A_VARIABLE_OF_THE_PROGRAM_{n}", "value": "x" * 40} for n in range(100)]
_NOTES: Final = {f"example.org/{n}": "x" * 500 for n in range(100)}


def test_a_pod_of_kai_with_forty_containers_is_within_the_budget(server: Server) -> None:
    inits = [container(f"i{n}", env=_ENV, init=True) for n in range(20)]
    mains = [container(f"c{n}", env=_ENV) for n in range(20)]
    limit = {kai_rows.MEMORY.format("c19", "limit"): "1Gi", "mps": "true"}
    raw = of_kai({**_NOTES, **limit}, *inits, *mains)
    answer = tried(server, raw)
    assert answer.done, answer.body
    raw["metadata"]["annotations"]["gpu-fraction-container-name"] = "c0"
    assert tried(server, raw).text.endswith("does not match container name c19")


def test_a_pod_of_32_containers_is_within_the_budget(server: Server) -> None:
    """A policy's expressions have a cost budget. It suffices for an error in the last container."""
    share = {SHARED: 1, CORE: 2, RATIO: 2}
    inits = [asking(dict(share), f"i{n}", env=_ENV, init=True) for n in range(16)]
    mains = [asking(dict(share), f"c{n}", env=_ENV) for n in range(16)]
    raw = pod(*inits, *mains, annotations=_NOTES)
    answer, last = tried(server, raw), raw["spec"]["containers"][-1]
    assert answer.done, answer.text
    last["resources"] = {"limits": {RATIO: 150}}
    assert tried(server, raw).text == verdict(raw, ALL_ON) != ""
    last["resources"] = {"limits": share}
    last["env"] = [*_ENV, {"name": names.ENV_MEMORY_LIMIT, "value": "1"}]
    assert "container c15: env CUDA_DEVICE_MEMORY_LIMIT" in tried(server, raw).text


# --- the scheduler of a pod


@pytest.mark.parametrize(
    ("raw", "scheduler"),
    [
        (unnamed(asking({GPU: 1, dialects.HAMI_MEMORY: 3000})), names.SCHEDULER_NAME),
        (unnamed(container(resources={"limits": {GPU: "2"}})), names.SCHEDULER_NAME),
        (unnamed(container(), asking({GPU: 1}, "first", init=True)), names.SCHEDULER_NAME),
        (pod(asking({GPU: 1}), scheduler=STOCK), names.SCHEDULER_NAME),
        (unnamed(container()), STOCK),
        (unnamed(asking({GPU: 0})), STOCK),
        (unnamed(asking({GPU: 1}), labels={"hami.io/webhook": "ignore"}), STOCK),
    ],
)
def test_a_pod_of_hami_that_names_no_scheduler_gets_ours(
    server: Server, raw: Json, scheduler: str
) -> None:
    assert scheduler_of(tried(server, raw)) == scheduler


def test_a_pod_of_hami_that_names_its_node_is_refused(server: Server) -> None:
    raw = unnamed(asking({GPU: 1}))
    raw["spec"]["nodeName"] = "n1"
    answer = tried(server, raw)
    assert answer.policy == "gpuslice-hami"
    assert answer.text.startswith("nodeName: invalid value 'n1': must be empty")


def test_without_the_mutation_pods_and_templates_must_name_the_scheduler(
    installed: ControlPlane, server: Server
) -> None:
    refused = (
        "schedulerName: invalid value 'default-scheduler': must be gpuslice-scheduler or"
        " kai-scheduler or volcano or hami-scheduler in a pod that requests a share of a GPU;"
        " default-scheduler would start it without a GPU"
    )
    raw = unnamed(asking({GPU: 1}))
    path, workload = workloads(pod(asking({GPU: 1}), scheduler=STOCK))["Job"]
    assert tried(server, workload, path).done
    installed.kubectl("delete", "mutatingadmissionpolicybinding", "gpuslice-hami-scheduler")
    try:
        until(lambda: tried(server, raw).text == refused, "no pod is changed")
        installed.apply_json(*policies(*SWITCHES))
        until(lambda: tried(server, workload, path).text == refused, "templates are judged")
        assert tried(server, volcano(scheduler=STOCK)).policy == NAMES_POLICY
    finally:
        installed.apply_json(*policies(MUTATES, *SWITCHES))
        until(lambda: scheduler_of(tried(server, raw)) == names.SCHEDULER_NAME, "set")


# --- variables and annotations


def test_what_their_webhooks_set_is_permitted_on_their_pods(server: Server) -> None:
    for dialect, made in ((KAI, kai), (VOLCANO, volcano), (HAMI, hami)):
        for name in dialect.webhook_environment:
            name, _, only = name.partition("=")
            for value in ({"value": only or "0"}, {"valueFrom": _FROM_MAP}):
                done = tried(server, made({"name": name, **value})).done
                assert done == (not only or "value" in value), (dialect.name, name)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (koordinator, names.ENV_VISIBLE_DEVICES),
        (hami, dialects.HAMI_CORE_POLICY),
        (kai, dialects.HAMI_CORE_POLICY),
        (kai, dialects.HAMI_TASK_PRIORITY),
        (kai, names.ENV_MEMORY_LIMIT),
        (volcano, "LD_AUDIT"),
        (hami, f"{names.ENV_MEMORY_LIMIT}_0"),
    ],
)
def test_other_variables_and_variables_of_other_dialects_are_refused(
    server: Server, made: Callable[..., Json], name: str
) -> None:
    answer = tried(server, made({"name": name, "value": "1"}))
    assert (answer.status, answer.policy) == (403, "gpuslice-environment"), answer.body
    assert answer.text.startswith(f"container main: env {name}: invalid value '1': must be ")


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (of_kai(kai_rows.HALF), dialects.KAI_RECEIVED_TYPE),
        (of_volcano(asking({dialects.VOLCANO_MEMORY: 1024})), dialects.VOLCANO_INDEX),
    ],
)
def test_what_the_scheduler_writes_for_their_programs(
    installed: ControlPlane, server: Server, raw: Json, key: str
) -> None:
    """A new pod may have the annotation. The Binding replaces it. Later changes are refused."""
    raw["metadata"].setdefault("annotations", {})[key] = "old"
    with server.made(PODS, raw) as path, Server(installed, "scheduler") as scheduler:
        assert scheduler.ask("POST", f"{path}/binding", binding("p", "n", {key: "new"})).done
        assert server.get(path)["metadata"]["annotations"][key] == "new"
        for value in ("other", None):
            answer = server.patch(path, {"metadata": {"annotations": {key: value}}})
            assert (answer.status, answer.policy) == (403, "gpuslice-allocations"), answer.body
            assert answer.text.startswith(f"metadata.annotations[{key}]: forbidden to ")
