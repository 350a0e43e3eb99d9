"""Memory that several processes hold is charged once, while any of them holds it."""

from __future__ import annotations

import fcntl
import struct

import pytest

from gpuslice.contract import names, region_file
from tests.shim.region.core import Box
from tests.support import until

pytestmark = pytest.mark.sim
SHARED = 4000
OWN = 1000
KEY = 0x1234_5678_9ABC_DEF0


def _shared_slots(box: Box) -> list[int]:
    return [slot.bytes for slot in box.slots() if slot.state == region_file.SLOT_SHARED]


def test_what_is_exported_and_imported_is_charged_once(box: Box) -> None:
    with box.holding(SHARED, shared_by=KEY) as exporter, box.shell() as one, box.shell() as other:
        assert exporter.ask(f"reserve 0 {OWN}") == "OK"
        assert box.used() == SHARED + OWN
        assert _shared_slots(box) == [SHARED]
        for importer in (one, other):
            assert importer.ask("attach") == "OK"
            assert importer.ask(f"join {KEY}").split()[1:] == ["0", str(SHARED)]
            assert box.used_seen_afresh() == SHARED + OWN
        for shell in (exporter, other):
            shell.ask("leave")
            assert box.used_seen_afresh() == SHARED + OWN
        one.ask("leave")
        assert box.used() == OWN, "at once, without a search"
        assert _shared_slots(box) == []


def test_an_exporter_that_is_killed_without_importers_leaves_nothing(box: Box) -> None:
    with box.holding(SHARED, shared_by=KEY) as exporter, box.shell() as importer:
        assert box.used_without(exporter) == 0
        importer.ask("attach")
        assert importer.ask(f"join {KEY}") == "0"


def test_an_unknown_key_joins_no_charge(box: Box) -> None:
    with box.holding(SHARED, shared_by=KEY), box.shell() as importer:
        importer.ask("attach")
        assert importer.ask(f"join {KEY + 1}") == "0"


def test_a_fork_child_holds_nothing_of_its_parent(box: Box) -> None:
    with box.holding(SHARED, shared_by=KEY) as exporter:
        exporter.child("fork leave")
        assert box.used_seen_afresh() == SHARED
        assert box.used_without(exporter) == 0, "though the child runs"


@pytest.mark.parametrize(
    ("step", "passage", "left"),
    [("REAP_VERDICT", 2, SHARED), ("SHARE_HIDDEN", 1, 0)],
    ids=["before", "while"],
)
def test_a_process_that_joins_before_the_slot_is_reclaimed_keeps_the_charge(
    box: Box, step: str, passage: int, left: int
) -> None:
    """The reaper stops at a step, for the exporter's slot or for the shared slot. A process may
    join and keep the charge until the reaper reclaims the shared slot."""
    with (
        box.holding(SHARED, shared_by=KEY) as exporter,
        box.shell() as reaper,
        box.shell() as importer,
    ):
        importer.ask("attach")
        exporter.kill()
        assert reaper.stops_at(step, passage, "attach")
        assert (importer.ask(f"join {KEY}") != "0") is (left > 0)
        assert box.used_seen_afresh() == left, "the slow process withholds nothing"
        assert reaper.resume() == "OK"
        assert box.used_seen_afresh() == left
        assert box.used_without(importer) == 0


def test_where_half_of_all_slots_are_taken_nothing_is_shared(box: Box) -> None:
    half = names.MAX_SLOTS // 2
    data = bytearray(box.region.read_bytes())
    for number in range(half):
        offset = box.slot_offset(number)
        struct.pack_into("<II", data, offset, region_file.SLOT_LIVE, 1)
        struct.pack_into("<Q", data, offset + region_file.SLOT.offset("generation"), 1)
    box.region.write_bytes(data)
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, region_file.LOCK_LIVE, half, 0)
    with box.region.open("r+b") as file:
        fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, lock)
        with box.holding(SHARED) as exporter:
            assert exporter.ask(f"share 0 {SHARED} {KEY}") == "0"
            assert box.used() == SHARED
        until(lambda: box.used_seen_afresh() == 0, "the end of the exporter's own charge")


def test_where_a_mapping_keeps_no_lock_nothing_is_shared(box: Box) -> None:
    """A mapping on overlayfs has no lock. Other processes would take its holder for exited."""
    with box.holding(SHARED) as exporter:
        assert exporter.ask("drop-lock") == "OK"
        assert exporter.ask(f"share 0 {SHARED} {KEY}") == "0"
        assert box.used_seen_afresh() == SHARED
