"""kube-scheduler with the generated configuration and the extender: shares are packed although it
would spread them, and a pod's own preferences have precedence."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.fleet import Fleet
from lab.cluster.fleet_objects import Shape
from tests.cluster.admission.requested import asking, container, pod
from tests.cluster.running import running
from tests.cluster.server import Server
from tests.support import until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
Place = Callable[..., str]

_PODS: Final = "/api/v1/namespaces/default/pods"
_REPLICA: Final = "packing"
_NODES: Final = 4
_SHAPE: Final = Shape(nodes=_NODES, gpus=2, memory_bytes=40 << 30, prefix="packed-")
QUARTER: Final = {names.RESOURCE_CORE: 25, names.RESOURCE_MEMORY_RATIO: 25}


@pytest.fixture(scope="module")
def server(installed: ControlPlane) -> Iterator[Server]:
    """Nodes of 64 processors, the scheduler, and a Service that selects the pods."""
    service = {
        "metadata": {"name": "packed"},
        "spec": {"selector": {"app": "packed"}, "ports": [{"port": 80}]},
    }
    with Fleet(installed, _SHAPE.all_nodes()), Server(installed) as asked:
        assert asked.ask("POST", "/api/v1/namespaces/default/services", service).done
        with running(installed, _REPLICA):
            yield asked
        asked.ask("DELETE", "/api/v1/namespaces/default/services/packed")


@pytest.fixture
def place(server: Server) -> Iterator[Place]:
    """Creates a pod and returns its node; the pods are deleted after the test."""
    made = []

    def one(asked: Json, cpu: str = "8", **spec: Any) -> str:
        name = f"p-{secrets.token_hex(4)}"
        share = asking({**asked, "cpu": cpu}) if asked else container()
        raw = pod(share, name=name, labels={"app": "packed"})
        raw["spec"] |= spec
        answer = server.ask("POST", _PODS, raw)
        assert answer.done, answer.text
        made.append(name)
        return node_of(name)

    def node_of(name: str) -> str:
        def now() -> str:
            return str(server.ask("GET", f"{_PODS}/{name}").body["spec"].get("nodeName", ""))

        until(lambda: now() != "", f"{name} is bound")
        return now()

    yield one
    for name in made:
        server.ask("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0")
    until(lambda: all(server.ask("GET", f"{_PODS}/{n}").status == 404 for n in made), "all gone")


def test_shares_are_packed_although_their_service_would_spread_them(place: Place) -> None:
    first = place(QUARTER)
    assert [place(QUARTER) for _ in range(5)] == [first] * 5


def test_the_fuller_gpu_is_taken_although_all_else_is_against_it(place: Place) -> None:
    """One step of the extender's scores outweighs LeastAllocated and BalancedAllocation together,
    and the default spreading over nodes is off: this node already has more of the Service's
    pods."""
    full, other, *_ = _SHAPE.node_names()
    for _ in range(2):
        place(QUARTER, cpu="20", nodeSelector={"kubernetes.io/hostname": full})
    place(QUARTER, cpu="1", nodeSelector={"kubernetes.io/hostname": other})
    assert place(QUARTER, cpu="20") == full


def test_what_a_pod_prefers_comes_before_packing(place: Place) -> None:
    used = place(QUARTER)
    others = [name for name in _SHAPE.node_names() if name != used]
    field = {"key": "kubernetes.io/hostname", "operator": "In", "values": [others[-1]]}
    term = {"weight": 1, "preference": {"matchExpressions": [field]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert place(QUARTER, affinity=affinity) == others[-1]


def test_a_pod_may_ask_to_be_spread(place: Place) -> None:
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "packed"}},
    }
    nodes = {place(QUARTER, topologySpreadConstraints=[constraint]) for _ in range(_NODES)}
    assert len(nodes) == _NODES


def test_neither_program_is_forbidden_anything(installed: ControlPlane, place: Place) -> None:
    """The programs have the manifests' rights. The tests above caused all that they do."""
    place(QUARTER)
    logs = list(installed.directory.glob(f"{_REPLICA}.*.log"))
    assert len(logs) == 2
    for log in logs:
        assert "orbidden" not in log.read_text(), log.name
