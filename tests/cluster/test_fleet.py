"""The fleet simulator at a real API server: what it makes, keeps alive, breaks and takes away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contract import names
from simgpu.lab.controlplane import ControlPlane
from simgpu.lab.fleet import Fleet
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster

Fleets = Callable[..., Fleet]


def get(plane: ControlPlane, *what: str) -> Any:
    return json.loads(plane.kubectl("get", *what, "-o=json"))


def minors(plane: ControlPlane, node: str) -> dict[str, int]:
    cards = get(plane, "devices", node)["spec"]["devices"]
    return {card["id"]: card["minor"] for card in cards}


def beat(plane: ControlPlane, node: str) -> str:
    lease = get(plane, "lease", f"agent-{node}", f"-n={names.NAMESPACE}")
    return str(lease["spec"]["renewTime"])


def test_a_fleet_is_there_and_is_gone(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=3, cards=2, prefix="brief-")
    node = get(control_plane, "node", "brief-0002")
    assert node["status"]["allocatable"][names.RESOURCE_CORE] == "200"
    assert not node["spec"].get("taints")
    owner = get(control_plane, "device", "brief-0002")["metadata"]["ownerReferences"][0]
    assert owner["uid"] == node["metadata"]["uid"] == made.node_uid("brief-0002")
    made.close()
    for kind in ("nodes", "devices", "leases"):
        found = get(control_plane, kind, f"-n={names.NAMESPACE}")["items"]
        assert not [each for each in found if "brief-" in each["metadata"]["name"]]


def test_agents_renew_their_leases_until_they_are_killed(
    control_plane: ControlPlane, fleet: Fleets
) -> None:
    made = fleet(nodes=2, cards=1, prefix="alive-", renew_s=0.2)
    made.kill_agent("alive-0000")
    dead, living = (beat(control_plane, f"alive-000{number}") for number in range(2))
    until(lambda: beat(control_plane, "alive-0001") != living, "the living one's Lease moves")
    once = beat(control_plane, "alive-0001")
    until(lambda: beat(control_plane, "alive-0001") != once, "and again")
    assert beat(control_plane, "alive-0000") == dead
    made.start_agent("alive-0000")
    assert beat(control_plane, "alive-0000") > dead


def test_leases_move_on_after_the_api_server_was_away(
    control_plane: ControlPlane, fleet: Fleets
) -> None:
    fleet(nodes=2, cards=1, prefix="away-", renew_s=0.2)
    control_plane.restart_apiserver()
    before = beat(control_plane, "away-0001")
    until(lambda: beat(control_plane, "away-0001") != before, "the Lease moves")


def test_an_agent_says_why_it_is_not_ready(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=1, cards=1, prefix="unready-")
    for said in ("no driver", "true"):
        made.set_ready("unready-0000", said)
        lease = get(control_plane, "lease", "agent-unready-0000", f"-n={names.NAMESPACE}")
        assert lease["metadata"]["annotations"][names.ANNOTATION_READY] == said


def test_a_node_is_cordoned_and_its_cards_are(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=1, cards=2, prefix="barred-")
    uuid = made.card("barred-0000", 1).uuid
    made.cordon("barred-0000")
    made.cordon_cards("barred-0000", uuid)
    made.set_isolates("barred-0000", False)
    node = get(control_plane, "node", "barred-0000")
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][names.ANNOTATION_CORDONED_CARDS] == uuid
    assert names.LABEL_ISOLATION_PROVIDER not in node["metadata"]["labels"]
    made.cordon("barred-0000", False)
    made.cordon_cards("barred-0000")
    node = get(control_plane, "node", "barred-0000")
    assert "unschedulable" not in node["spec"]
    assert names.ANNOTATION_CORDONED_CARDS not in node["metadata"].get("annotations", {})


def test_a_node_is_replaced_under_its_name(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=1, cards=2, prefix="again-")
    before, cards = made.node_uid("again-0000"), minors(control_plane, "again-0000")
    made.replace_node("again-0000")
    uid = get(control_plane, "node", "again-0000")["metadata"]["uid"]
    assert before != uid == made.node_uid("again-0000")
    device = get(control_plane, "device", "again-0000")
    assert device["metadata"]["ownerReferences"][0]["uid"] == uid
    assert not cards.keys() & minors(control_plane, "again-0000").keys()


def test_a_card_is_replaced_and_others_are_renumbered(
    control_plane: ControlPlane, fleet: Fleets
) -> None:
    made = fleet(nodes=1, cards=3, prefix="cards-")
    first, second, third = minors(control_plane, "cards-0000")
    fresh = made.replace_card("cards-0000", 1)
    assert minors(control_plane, "cards-0000") == {first: 0, fresh.uuid: 1, third: 2}
    assert fresh.uuid != second
    made.renumber("cards-0000", {0: 2, 1: 0, 2: 1})
    assert minors(control_plane, "cards-0000") == {fresh.uuid: 0, third: 1, first: 2}


def test_a_card_fails_and_recovers(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=1, cards=2, prefix="fails-")

    def health() -> list[bool]:
        return [c["health"] for c in get(control_plane, "device", "fails-0000")["spec"]["devices"]]

    made.fail_card("fails-0000", 1)
    assert health() == [True, False]
    made.heal_card("fails-0000", 1)
    assert health() == [True, True]


def test_cards_are_added_with_the_nodes_totals(control_plane: ControlPlane, fleet: Fleets) -> None:
    made = fleet(nodes=1, cards=2, prefix="grown-")
    card = made.card("grown-0000", 1)
    made.set_cards("grown-0000", [card])
    assert minors(control_plane, "grown-0000") == {card.uuid: 1}
    totals = get(control_plane, "node", "grown-0000")["status"]
    assert totals["allocatable"][names.RESOURCE_MEMORY_RATIO] == "100"
    assert totals["capacity"][names.RESOURCE_MEMORY_RATIO] == "100"
