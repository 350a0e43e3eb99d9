"""The real API server judges which scheduler a share may name, what may accompany a share, and
which accounts may write a node's objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet_objects import Gpu, Node, device_json, lease_json, node_json, slice_json
from lab.cluster.manifests import KOORDINATOR, NAMES, NAMES_POLICY, STOCK
from tests.cluster.admission import scheduler_lease
from tests.cluster.admission.judging import DRY, PODS, tried
from tests.cluster.installing import serve
from tests.cluster.server import Answer, Json, Server
from tests.requests.pods import HALF, asking, binding, container, pod, workloads
from tests.support import until

pytestmark = pytest.mark.cluster


# --- which scheduler a share may be requested of


@pytest.mark.parametrize("init", [False, True])
def test_a_share_with_the_stock_scheduler_is_refused(server: Server, init: bool) -> None:
    answer = tried(server, pod(asking(HALF, "asks", init=init), scheduler=STOCK))
    assert (answer.status, answer.policy) == (422, NAMES_POLICY), answer.body
    assert answer.text == (
        "schedulerName: invalid value 'default-scheduler': must be gpuslice-scheduler in a pod that"
        " requests a share of a GPU; default-scheduler would start it without a GPU"
    )


def test_the_names_that_are_turned_on(installed: ControlPlane, server: Server) -> None:
    serve(installed, KOORDINATOR)
    try:
        text = tried(server, pod(asking(HALF), scheduler=STOCK)).text
        assert "must be gpuslice-scheduler or koord-scheduler in a pod" in text
        for name in NAMES:
            assert tried(server, pod(asking(HALF), scheduler=name)).done
            unsatisfiable = pod(asking({names.RESOURCE_CORE: 101}), scheduler=name)
            assert tried(server, unsatisfiable).policy == "gpuslice-requests"
            limited = pod(asking(HALF, env=env(names.ENV_MEMORY_LIMIT)), scheduler=name)
            assert tried(server, limited).policy == "gpuslice-environment"
    finally:
        serve(installed)


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


def env(name: str, value: str = "all") -> list[Json]:
    return [{"name": "HOME", "value": "/"}, {"name": name, "value": value}]


def denied(answer: Answer, container_name: str, name: str, value: str = "'all'") -> None:
    why = "absent beside a share of a GPU, as the grant sets the limit"
    if name == names.ENV_VISIBLE_DEVICES:
        why = "void or none, as the grant selects the GPUs"
    assert (answer.status, answer.policy) == (403, "gpuslice-environment"), answer.body
    assert answer.text == (
        f"container {container_name}: env {name}: invalid value {value}: must be {why}"
    )


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
    for init in (False, True):
        second = container("second", env=env(name), init=init)
        denied(tried(server, pod(asking(HALF), second)), "second", name)
    source = {"configMapKeyRef": {"name": "c", "key": "k"}}
    answer = tried(server, pod(asking(HALF, env=[{"name": name, "valueFrom": source}])))
    denied(answer, "main", name, "valueFrom")
    beside_no_share = pod(container(env=env(name)), scheduler=STOCK)
    assert tried(server, beside_no_share).done


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
    assert tried(server, pod(asking(HALF, env=env(name, value)))).done


def test_a_variable_in_an_ephemeral_container(server: Server) -> None:
    with server.made(PODS, pod(asking(HALF), name="debugged")) as path:

        def add(*containers: Json) -> Answer:
            body = {"spec": {"ephemeralContainers": containers}}
            return server.patch(f"{path}/ephemeralcontainers", body)

        honest = container("look", env=env("A", "b"))
        assert add(honest).done
        for name in DENIED:
            denied(add(honest, container("force", env=env(name))), "force", name)


# --- which account may write the Binding of a share


def test_a_binding_of_a_former_holder_is_refused(installed: ControlPlane, server: Server) -> None:
    with (
        Server(installed, "scheduler") as scheduler,
        server.made(PODS, pod(asking(HALF), name="bound")) as path,
    ):

        def bind(writer: str, query: str = "") -> Answer:
            allocation = {names.ANNOTATION_DEVICE_ALLOCATED: '{"gpu":[]}'}
            annotations = {**allocation, names.ANNOTATION_WRITER: writer}
            body = binding("bound", "n1", annotations)
            return scheduler.ask("POST", f"{path}/binding{query}", body)

        scheduler_lease.write(scheduler, "us_7")
        try:
            # The policy accepts any writer until the API server's cache has the Lease. A dry run
            # shows whether it has, without binding the pod.
            until(lambda: bind("us_6", DRY).policy == "gpuslice-writer", "the server has the Lease")
            assert bind("us_6").text == (
                "metadata.annotations[gpuslice.io/writer]: invalid value 'us_6': must be 'us_7',"
                " the holder of the Lease gpuslice-system/gpuslice-kube-scheduler"
            )
            assert bind("").policy == "gpuslice-writer"
            assert bind("us_7").done
        finally:
            scheduler_lease.delete(installed)


# --- which account may write a node's objects

_NODES: Final = "/api/v1/nodes"
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"


@pytest.fixture(scope="module")
def agent(installed: ControlPlane, server: Server) -> Iterator[Server]:
    """Return a client with a token as issued to the agent's pod on node n-own.

    The token names the node. Both nodes are created once for all tests, because the API server's
    cache may return a deleted node of the same name for a while.
    """
    other, own = (server.made(_NODES, node_json(Node(name, ()))) for name in ("n-other", "n-own"))
    with other, own as path:
        uid = server.get(path)["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Node", "name": "n-own", "uid": uid}
        token = agent_token(server, {"boundObjectRef": bound})
        with Server(installed, token=token) as agents:
            yield agents


def agent_token(server: Server, spec: Json) -> str:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/serviceaccounts/gpuslice-agent/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = server.ask("POST", path, asked)
    assert answer.done, answer.text
    return str(answer.body["status"]["token"])


def said_of(server: Server, node: str) -> dict[str, Answer]:
    """Try everything that an agent writes for a node, and return the answers by kind of object."""
    described = Node(node, (Gpu("GPU-a", 0, 24 << 30),))
    device = device_json(described, "uid")
    lease = lease_json(node, "2026-01-01T00:00:00.000000Z")
    capacity = {"status": {"capacity": {names.RESOURCE_CORE: "100"}}}
    labels = {"metadata": {"labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}}}
    return {
        "devices": server.ask("POST", _DEVICES, device),
        "a device": server.patch(f"{_DEVICES}/{node}", labels),
        "slices": server.ask("POST", _SLICES, slice_json(described)),
        "a slice": server.patch(f"{_SLICES}/{slice_json(described)['metadata']['name']}", labels),
        "leases": server.ask("POST", _LEASES, lease),
        "a lease": server.patch(f"{_LEASES}/agent-{node}", labels),
        "nodes": server.patch(f"{_NODES}/{node}", labels),
        "nodes/status": server.patch(f"{_NODES}/{node}/status", capacity),
    }


def test_an_agent_writes_the_objects_of_its_own_node_alone(agent: Server, server: Server) -> None:
    own = said_of(agent, "n-own")
    assert {what: each.text for what, each in own.items() if not each.done} == {}
    stolen = slice_json(Node("n-other", ())) | {"spec": slice_json(Node("n-own", ()))["spec"]}
    assert agent.ask("POST", _SLICES, stolen).policy == "gpuslice-agents"
    said_of(server, "n-other")
    for what, answer in said_of(agent, "n-other").items():
        assert answer.policy == "gpuslice-agents" or answer.status == 409, (what, answer.body)
        assert answer.status == 409 or answer.text.endswith(" for the agent of node n-own")
    lease = {"metadata": {"name": names.LEASE_KUBE_SCHEDULER}, "spec": {"holderIdentity": "me"}}
    answer = agent.ask("POST", _LEASES, lease)
    assert answer.policy == "gpuslice-agents", answer.body
    assert answer.text.endswith("must be agent-n-own for the agent of node n-own")


def test_an_agent_whose_token_names_no_node_writes_nothing(
    installed: ControlPlane, server: Server
) -> None:
    with Server(installed, token=agent_token(server, {})) as nowhere:
        answer = nowhere.ask("POST", _DEVICES, device_json(Node("n-own", ()), "uid"))
    assert answer.text == (
        "devices: invalid name n-own: must be that of the agent's node, but its token names no node"
    )


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/persistentvolumes"),
        ("DELETE", f"{_NODES}/n-own"),
        ("POST", PODS),
        ("DELETE", _DEVICES),
    ],
)
def test_an_agent_has_no_other_rights(agent: Server, verb: str, path: str) -> None:
    answer = agent.ask(verb, path, pod() if verb == "POST" else None)
    assert (answer.status, "cannot" in answer.text) == (403, True), answer.body
