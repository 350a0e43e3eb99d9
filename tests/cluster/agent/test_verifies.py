"""The agent verifies each running grant against the pod at a real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from nri_plugin.kube import verification
from nri_plugin.kube.verification import GrantState
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod, Share
from tests.cluster.agent import side as agent_side
from tests.cluster.agent.node import (
    Node,
    Pods,
    account,
    allocated,
    events,
    host,
    leaving,
    node,
    node_events,
    of_pod,
    pods,
    server,
    side,
    small_gpu,
)
from tests.cluster.agent.side import Side
from tests.cluster.opening import opened
from tests.cluster.server import MERGE_PATCH, Server
from tests.simgpu.host import GIB, Host
from tests.support import until

pytestmark = [pytest.mark.cluster, pytest.mark.sim]

__all__ = ["account", "host", "node", "pods", "server", "side"]


@pytest.fixture
def unguarded(installed: ControlPlane) -> Iterator[None]:
    with opened(installed):
        yield


def counts(side: Side, state: GrantState) -> float:
    found = side.metrics.registry.get_sample_value("gpuslice_grants", {"verification": state.value})
    return found or 0.0


def of_unknown(uuid: str) -> Hold:
    pod = Pod("unknown", "default", "unknown")
    return ledger.hold("c", "c", False, pod, "main", [Share(uuid, 1, GIB, 50)])


def test_a_grant_that_no_scheduler_wrote_is_reported_and_its_pod_stays(
    side: Side, node: Node, server: Server, pods: Pods, unguarded: None
) -> None:
    """Although all of them fit, and one is the first."""
    uuid = small_gpu(node)
    share = allocated(uuid, 1, GIB // 2, core=10)
    made = pods.make(node.name, share)
    honest = pods.bind(node, uuid, 1, GIB)
    changed = pods.make()
    pods.bound(changed, node, {})
    until(lambda: side.bounds.pod(of_pod(server, changed, uuid, 1).pod_uid) is not None, "it")
    assert server.ask("PATCH", changed, {"metadata": {"annotations": share}}, MERGE_PATCH).done
    unsigned = pods.make(annotations=share)
    with_admin = {"metadata": {"name": unsigned.rpartition("/")[2]}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node.name}
    binding = {"apiVersion": "v1", "kind": "Binding", **with_admin, "target": target}
    assert server.ask("POST", f"{unsigned}/binding", binding).done
    wrong = {
        made: "the pod was created with spec.nodeName; no scheduler bound it",
        changed: f"annotation {names.ANNOTATION_DEVICE_ALLOCATED} was changed after",
        unsigned: f"annotation {names.ANNOTATION_WRITER}, which our scheduler writes with it",
    }
    side.holds = tuple(
        of_pod(server, path, uuid, GIB // 2, container_id=path) for path in (*wrong, honest)
    )
    for path, why in wrong.items():
        until(lambda path=path: bool(events(server, path)), f"its event: {why}")  # type: ignore[misc]
        (said,) = events(server, path)
        assert "refused now: GPU grant: must be written by a scheduler" in said and why in said
    time.sleep(2)  # several checks
    assert not any(leaving(server, path) for path in (*wrong, honest))
    assert events(server, honest) == []
    assert (counts(side, GrantState.CONFIRMED), counts(side, GrantState.MISMATCH)) == (1, 3)


def test_an_allocation_that_was_changed_without_an_agent_is_detected(
    account: Path, node: Node, host: Host, server: Server, pods: Pods, unguarded: None
) -> None:
    """The runtime still reports the annotations as of the container's creation."""
    with agent_side.serving(node.name, account, host.env()):
        uuid = small_gpu(node)
    honest, other = pods.bind(node, uuid, 1, GIB), pods.bind(node, uuid, 1, GIB)
    then = allocated(uuid, 1, GIB)
    holds = [of_pod(server, path, uuid, GIB, container_id=path) for path in (honest, other)]
    more = {"metadata": {"annotations": allocated(uuid, 1, 2 * GIB)}}
    assert server.ask("PATCH", other, more, MERGE_PATCH).done
    with agent_side.serving(node.name, account, host.env()) as side:
        side.holds = tuple(replace(h, pod=replace(h.pod, annotations=then)) for h in holds)
        until(lambda: bool(events(server, other)), "its event")
        (said,) = events(server, other)
        assert f"annotation {names.ANNOTATION_DEVICE_ALLOCATED} was changed after" in said
        assert not leaving(server, other)


def test_a_container_with_more_than_its_pod_was_granted(
    side: Side, node: Node, server: Server, pods: Pods
) -> None:
    uuid = small_gpu(node)
    honest, other = pods.bind(node, uuid, 1, GIB), pods.bind(node, uuid, 1, GIB)
    side.holds = (
        of_pod(server, honest, uuid, GIB),
        of_pod(server, other, uuid, 2 * GIB, container_id="2"),
    )
    until(lambda: bool(events(server, other)), "its event")
    (said,) = events(server, other)
    assert "GPU grant: must be that of the pod at the API server" in said
    assert f"has {2 * GIB} bytes and 50 percent of {uuid}, granted are {GIB} and 50" in said
    assert not leaving(server, other)
    assert (counts(side, GrantState.CONFIRMED), counts(side, GrantState.MISMATCH)) == (1, 1)


@pytest.mark.parametrize("made", ["on the CRI socket", "at the API server, and deleted by force"])
def test_a_container_whose_pod_stays_absent_is_reported(
    side: Side,
    node: Node,
    server: Server,
    pods: Pods,
    made: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "ABSENT_S", 5.0)
    uuid = small_gpu(node)
    held = of_unknown(uuid)
    if made != "on the CRI socket":
        path = pods.bind(node, uuid, 1, GIB)
        held = of_pod(server, path, uuid, GIB)
        side.holds = (held,)
        until(lambda: counts(side, GrantState.CONFIRMED) == 1, "it is confirmed")
        assert server.ask("DELETE", f"{path}?gracePeriodSeconds=0").done
    side.holds = (held,)
    until(lambda: counts(side, GrantState.UNKNOWN) == 1, "it is absent")
    assert side.readiness.notes == () and node_events(server, node) == []
    until(lambda: bool(node_events(server, node)), "the node's event")
    assert counts(side, GrantState.POD_NOT_FOUND) == 1
    (said,) = node_events(server, node)
    assert (said["reason"], said["type"]) == (names.EVENT_GRANT_UNCONFIRMED, "Warning")
    assert (said["related"]["name"], said["related"]["uid"]) == (held.pod.name, held.pod.uid)
    assert held.container_key in said["note"] and "lists no such pod" in said["note"]
    side.holds = ()
    until(lambda: counts(side, GrantState.POD_NOT_FOUND) == 0, "it is gone")


def test_an_unconfirmed_grant_runs_is_reported_and_confirmed_later(
    account: Path, node: Node, host: Host, server: Server, pods: Pods, installed: ControlPlane
) -> None:
    """The agent starts with running containers while the API server is unavailable."""
    with agent_side.serving(node.name, account, host.env()):
        uuid = small_gpu(node)
    path, other = pods.bind(node, uuid, 1, GIB), pods.bind(node, uuid, 1, GIB)
    honest = of_pod(server, path, uuid, GIB)
    greedy = of_pod(server, other, uuid, 2 * GIB, container_id="2")
    installed.apiserver.kill()
    try:
        with agent_side.serving(node.name, account, host.env()) as side:
            side.holds = (honest, greedy)
            until(lambda: bool(side.readiness.notes), "the note is there")
            (note,) = side.readiness.notes
            assert note.startswith("grants that the API server has not confirmed: ")
            assert honest.container_key in note and greedy.container_key in note
            assert not side.readiness.problems
            assert counts(side, GrantState.UNKNOWN) == 2
            installed.restart_apiserver()
            until(lambda: counts(side, GrantState.CONFIRMED) == 1, "the one is confirmed")
            until(lambda: not side.readiness.notes, "the note is gone")
            with Server(installed) as again:
                until(lambda: bool(events(again, other)), "the event of the other")
                assert not leaving(again, other)
    except BaseException:
        installed.restart_apiserver()
        raise
