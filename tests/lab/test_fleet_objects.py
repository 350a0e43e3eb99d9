"""What the simulated fleet's objects say is what the scheduler reads."""

from __future__ import annotations

from dataclasses import replace

from contract import names
from scheduler import translate
from simgpu.lab.fleet import now
from simgpu.lab.fleet_objects import (
    Card,
    Node,
    Shape,
    card_uuid,
    device_json,
    lease_json,
    node_json,
)

GIB = 1 << 30


def test_a_shape_makes_equal_nodes_of_different_cards() -> None:
    nodes = Shape(nodes=3, cards=2, memory_bytes=24 * GIB, prefix="gpu-").all_nodes()
    assert [node.name for node in nodes] == ["gpu-0000", "gpu-0001", "gpu-0002"]
    assert [card.numa for card in nodes[0].cards] == [0, 1]
    assert len({card.uuid for node in nodes for card in node.cards}) == 6
    assert nodes[2].cards[1].uuid == card_uuid(2, 1)


def test_the_scheduler_reads_a_device_as_it_was_meant() -> None:
    cards = (
        Card("GPU-a", 0, 24 * GIB, numa=1, root="pci0000:3a", link="x", labels={"model": "L4"}),
        Card("GPU-b", 1, 24 * GIB, healthy=False),
    )
    read = translate.device(device_json(Node("n", cards), "uid-1"))
    assert (read.name, read.node_uid, read.problems) == ("n", "uid-1", ())
    first, second = read.cards
    assert (first.uuid, first.minor, first.total_bytes) == ("GPU-a", 0, 24 * GIB)
    assert (first.usable, first.numa, first.root, first.link) == (True, 1, "pci0000:3a", "x")
    assert first.labels == {"model": "L4", names.LABEL_CARD_LINK: "x"}
    assert not second.usable


def test_the_scheduler_reads_a_node_as_it_was_meant() -> None:
    plain = Shape(nodes=1).all_nodes()[0]
    read = translate.node(node_json(plain))
    assert (read.name, read.isolates, read.cordoned, read.excluded) == (
        "node-0000",
        True,
        set(),
        set(),
    )
    other = replace(
        plain, isolates=False, cordoned_cards=("GPU-a",), excluded_cards=("GPU-b", "GPU-c")
    )
    read = translate.node(node_json(other))
    assert (read.isolates, read.cordoned, read.excluded) == (False, {"GPU-a"}, {"GPU-b", "GPU-c"})


def test_a_nodes_totals_are_of_all_its_cards() -> None:
    cards = (Card("GPU-a", 0, 24 * GIB), Card("GPU-b", 1, 40 * GIB, healthy=False))
    status = node_json(Node("n", cards))["status"]
    assert status["allocatable"] == status["capacity"]
    assert status["capacity"][names.RESOURCE_MEMORY] == str(64 * GIB)
    assert status["capacity"][names.RESOURCE_CORE] == "200"
    assert status["capacity"][names.RESOURCE_SHARED] == "200"


def test_the_scheduler_reads_a_lease_as_it_was_meant() -> None:
    renewed = now()
    read = translate.lease(lease_json("n", renewed))
    assert read is not None
    assert (read.node, read.beat, read.not_ready) == ("n", renewed, "")
    read = translate.lease(lease_json("n", renewed, "no driver"))
    assert read is not None and read.not_ready == "no driver"
