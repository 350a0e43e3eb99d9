"""Which scheduler a share may be requested of, what may accompany a share, and which accounts may
write a node's objects, at the real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import Gpu, Node, device_json, lease_json, node_json
from lab.cluster.manifests import KOORDINATOR, NAMES, NAMES_POLICY, STOCK
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.judging import DRY, PODS, tried
from tests.cluster.installing import serve
from tests.cluster.server import MERGE_PATCH, Answer, Server
from tests.requests.pods import HALF, asking, binding, container, pod, workloads
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


@pytest.fixture
def with_koordinators_name(installed: ControlPlane) -> Iterator[None]:
    serve(installed, KOORDINATOR)
    yield
    serve(installed)


# --- which scheduler a share may be requested of


@pytest.mark.parametrize("init", [False, True])
def test_a_share_with_the_stock_scheduler_is_refused(server: Server, init: bool) -> None:
    answer = tried(server, pod(asking(HALF, "asks", init=init), scheduler=STOCK))
    assert (answer.status, answer.policy) == (422, NAMES_POLICY), answer.body
    assert answer.text == (
        "schedulerName: invalid value 'default-scheduler': must be gpuslice-scheduler in a pod that"
        " requests a share of a GPU; default-scheduler would start it without a GPU"
    )


@pytest.mark.parametrize("scheduler", NAMES)
def test_the_names_that_are_turned_on(
    server: Server, with_koordinators_name: None, scheduler: str
) -> None:
    assert tried(server, pod(asking(HALF), scheduler=scheduler)).done
    text = tried(server, pod(asking(HALF), scheduler=STOCK)).text
    assert "must be gpuslice-scheduler or koord-scheduler in a pod" in text
    unsatisfiable = pod(asking({names.RESOURCE_CORE: 101}), scheduler=scheduler)
    assert tried(server, unsatisfiable).policy == "gpuslice-requests"
    limited = [{"name": names.ENV_MEMORY_LIMIT, "value": "1g"}]
    beside = pod({**asking(HALF), "env": limited}, scheduler=scheduler)
    assert tried(server, beside).policy == "gpuslice-environment"


def test_the_hand_made_way_past_the_scheduler(server: Server) -> None:
    raw = pod(asking(HALF))
    raw["spec"]["nodeName"] = "n1"
    answer = tried(server, raw)
    assert (answer.status, answer.policy) == (422, NAMES_POLICY), answer.body
    assert answer.text == (
        "nodeName: invalid value 'n1': must be empty in a pod that requests a share of a GPU, so"
        " that the scheduler allocates it; use a nodeSelector or an affinity instead"
    )
    path, workload = workloads(raw)["DaemonSet"]
    assert tried(server, workload, path).policy == NAMES_POLICY
    raw["spec"]["containers"] = [container()]
    assert tried(server, raw).done


# --- variables


def denied(container_name: str, name: str, value: str) -> str:
    if name == names.ENV_VISIBLE_DEVICES:
        why = "void or none, as the grant selects the GPUs"
    else:
        why = "absent beside a share of a GPU, as the grant sets the limit"
    return f"container {container_name}: env {name}: invalid value {value}: must be {why}"


DENIED: Final = (
    names.ENV_MEMORY_LIMIT,
    f"{names.ENV_MEMORY_LIMIT}_0",
    names.ENV_CORE_LIMIT,
    f"{names.ENV_CORE_LIMIT}_15",
    names.ENV_SHARED_CACHE,
    "CUDA_DISABLE_CONTROL",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
    names.ENV_DIR,
    "LD_AUDIT",
    names.ENV_VISIBLE_DEVICES,
)


@pytest.mark.parametrize("name", DENIED)
def test_a_variable_that_a_limit_hangs_on(server: Server, name: str) -> None:
    env = [{"name": "HOME", "value": "/"}, {"name": name, "value": "all"}]
    for init in (False, True):
        answer = tried(server, pod(asking(HALF), container("second", env=env, init=init)))
        assert (answer.status, answer.policy) == (403, "gpuslice-environment"), answer.body
        assert answer.text == denied("second", name, "'all'")
    source = {"configMapKeyRef": {"name": "c", "key": "k"}}
    answer = tried(server, pod(asking(HALF, env=[{"name": name, "valueFrom": source}])))
    assert answer.text == denied("main", name, "valueFrom")
    assert tried(server, pod(container(env=env), scheduler=STOCK)).done, "beside no share"


@pytest.mark.parametrize("kind", workloads(pod()))
def test_another_scheduler_or_a_reserved_variable_in_a_template_is_refused(
    server: Server, kind: str
) -> None:
    path, workload = workloads(pod(asking(HALF), scheduler=STOCK))[kind]
    assert tried(server, workload, path).policy == NAMES_POLICY
    env = [{"name": names.ENV_MEMORY_LIMIT, "value": "1g"}]
    path, workload = workloads(pod(asking(HALF, env=env)))[kind]
    answer = tried(server, workload, path)
    assert answer.text == denied("main", names.ENV_MEMORY_LIMIT, "'1g'"), answer.body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE),
        (names.ENV_VISIBLE_DEVICES, "none"),
        (names.ENV_VISIBLE_DEVICES, ""),
        ("LD_PRELOAD", "/opt/lib/libown.so"),
        ("LD_LIBRARY_PATH", "/opt/lib"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("CUDA_DEVICE_MEMORY_LIMITS", "1"),
        (names.ENV_LOG_LEVEL, "0"),
        (names.ENV_DRIVER_CAPABILITIES, "all"),
    ],
)
def test_variables_of_honest_programs(server: Server, name: str, value: str) -> None:
    assert tried(server, pod(asking(HALF, env=[{"name": name, "value": value}]))).done


def test_a_variable_in_an_ephemeral_container(server: Server) -> None:
    assert server.ask("POST", PODS, pod(asking(HALF), name="debugged")).done
    try:
        path = f"{PODS}/debugged/ephemeralcontainers"
        honest = container("look", env=[{"name": "A", "value": "b"}])
        body = {"spec": {"ephemeralContainers": [honest]}}
        assert server.ask("PATCH", path, body, MERGE_PATCH).done
        for name in DENIED:
            forged = container("force", env=[{"name": name, "value": "all"}])
            body = {"spec": {"ephemeralContainers": [honest, forged]}}
            answer = server.ask("PATCH", path, body, MERGE_PATCH)
            assert (answer.status, answer.policy) == (403, "gpuslice-environment"), answer.body
            assert answer.text == denied("force", name, "'all'")
    finally:
        server.ask("DELETE", f"{PODS}/debugged?gracePeriodSeconds=0")


# --- which account may write the Binding of a share


def test_a_binding_of_a_former_holder_is_refused(installed: ControlPlane, server: Server) -> None:
    assert server.ask("POST", PODS, pod(asking(HALF), name="bound")).done

    def bind(writer: str, query: str = "") -> Answer:
        annotations = {
            names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[]}',
            names.ANNOTATION_WRITER: writer,
        }
        path = f"{PODS}/bound/binding{query}"
        return scheduler.ask("POST", path, binding("bound", "n1", annotations))

    with Server(installed, "scheduler") as scheduler:
        try:
            scheduler_lease.write(scheduler, "us_7")
            # Without the Lease the policy allows the Binding, so this must not bind the pod.
            until(
                lambda: bind("us_6", DRY).policy == "gpuslice-writer",
                "the API server has the Lease",
            )
            assert bind("us_6").text == (
                "metadata.annotations[gpuslice.io/writer]: invalid value 'us_6': must be 'us_7',"
                " the holder of the Lease gpuslice-system/gpuslice-kube-scheduler"
            )
            assert bind("").policy == "gpuslice-writer"
            assert bind("us_7").done
        finally:
            scheduler_lease.delete(installed)
            server.ask("DELETE", f"{PODS}/bound?gracePeriodSeconds=0")


# --- which account may write a node's objects


@pytest.fixture(scope="module")
def agent(installed: ControlPlane, server: Server) -> Iterator[Server]:
    """Return a client with a token as issued to the agent's pod on node n-own.

    The token contains the node's name. The nodes are created once: the API server looks the token's
    node up in a cache, which may hold the former one of that name for a while.
    """
    for name in ("n-own", "n-other"):
        server.ask("POST", "/api/v1/nodes", node_json(Node(name, ())))
    uid = server.ask("GET", "/api/v1/nodes/n-own").body["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n-own", "uid": uid}
    with Server(installed, token=agent_token(server, {"boundObjectRef": reference})) as own:
        yield own
    for name in ("n-own", "n-other"):
        server.ask("DELETE", f"/api/v1/nodes/{name}")


def agent_token(server: Server, spec: Json) -> str:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/gpuslice-agent/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = server.ask("POST", path, asked)
    assert answer.done, answer.text
    return str(answer.body["status"]["token"])


def said_of(server: Server, node: str) -> dict[str, Answer]:
    """Everything that an agent writes, for one node."""
    gpu = Gpu("GPU-a", 0, 24 << 30)
    device = device_json(Node(node, (gpu,)), "uid")
    lease = lease_json(node, "2026-01-01T00:00:00.000000Z")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
    capacity = {"status": {"capacity": {names.RESOURCE_CORE: "100"}}}
    labels = {"metadata": {"labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}}}
    devices = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
    return {
        "devices": server.ask("POST", devices, device),
        "a device": server.ask("PATCH", f"{devices}/{node}", labels, MERGE_PATCH),
        "leases": server.ask("POST", leases, lease),
        "a lease": server.ask("PATCH", f"{leases}/agent-{node}", labels, MERGE_PATCH),
        "nodes": server.ask("PATCH", f"/api/v1/nodes/{node}", labels, MERGE_PATCH),
        "nodes/status": server.ask("PATCH", f"/api/v1/nodes/{node}/status", capacity, MERGE_PATCH),
    }


def test_an_agent_writes_the_objects_of_its_own_node_alone(agent: Server, server: Server) -> None:
    own = said_of(agent, "n-own")
    assert {what: each.text for what, each in own.items() if not each.done} == {}
    said_of(server, "n-other")
    for what, answer in said_of(agent, "n-other").items():
        assert answer.policy == "gpuslice-agents" or answer.status == 409, (what, answer.body)
        assert answer.status == 409 or answer.text.endswith(" for the agent of node n-own")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
    lease = {"metadata": {"name": names.LEASE_KUBE_SCHEDULER}, "spec": {"holderIdentity": "me"}}
    answer = agent.ask("POST", leases, lease)
    assert answer.policy == "gpuslice-agents", answer.body
    assert answer.text.endswith("must be agent-n-own for the agent of node n-own")


def test_an_agent_whose_token_names_no_node_writes_nothing(
    installed: ControlPlane, server: Server
) -> None:
    with Server(installed, token=agent_token(server, {})) as nowhere:
        device = device_json(Node("n-own", ()), "uid")
        path = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
        answer = nowhere.ask("POST", path, device)
        assert answer.text == (
            "devices: invalid name n-own: must be that of the agent's node, but its token names no"
            " node"
        )


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/persistentvolumes"),
        ("DELETE", "/api/v1/nodes/n-own"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("DELETE", f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"),
    ],
)
def test_an_agent_has_no_other_rights(agent: Server, verb: str, path: str) -> None:
    answer = agent.ask(verb, path, pod() if verb == "POST" else None)
    assert answer.status == 403, json.dumps(answer.body)
    assert yaml.safe_load(answer.text) and "cannot" in answer.text
