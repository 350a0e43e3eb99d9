"""Memory that several processes hold is charged once, as long as any of them holds it."""

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
    return [slot.bytes[0] for slot in box.slots() if slot.state == region_file.SLOT_SHARED]


def test_what_is_exported_and_imported_is_charged_once(box: Box) -> None:
    with box.shell() as exporter, box.shell() as importer, box.shell() as another:
        assert exporter.ask(f"reserve 0 {SHARED + OWN}") == "OK"
        assert exporter.ask(f"share 0 {SHARED} {KEY}") != "0"
        assert box.use().used_bytes == SHARED + OWN
        assert _shared_slots(box) == [SHARED]
        for shell in (importer, another):
            assert shell.ask("attach") == "OK"
            assert shell.ask(f"join {KEY}").split()[1:] == ["0", str(SHARED)]
            assert box.used_seen_afresh() == SHARED + OWN
        for shell in (exporter, another):
            shell.ask("leave")
            assert box.used_seen_afresh() == SHARED + OWN
        importer.ask("leave")
        assert box.use().used_bytes == OWN, "at once, without a search"
        assert _shared_slots(box) == []


def test_an_exporter_that_is_killed_without_importers_leaves_nothing(box: Box) -> None:
    with box.holding(SHARED, shared_by=KEY) as exporter, box.shell() as importer:
        exporter.kill_alone()
        assert box.used_seen_afresh() == 0
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
        exporter.kill_alone()
        assert box.used_seen_afresh() == 0, "though the child runs"


def test_a_process_that_joins_before_the_slot_is_reclaimed_keeps_the_charge(box: Box) -> None:
    """The reaper has found no holder, and is slow."""
    with (
        box.holding(SHARED, shared_by=KEY) as exporter,
        box.shell() as reaper,
        box.shell() as importer,
    ):
        importer.ask("attach")
        exporter.kill_alone()
        # Its own slot is passed first, then the shared one.
        assert reaper.stops_at("REAP_VERDICT", 2, ["attach"])
        assert importer.ask(f"join {KEY}") != "0"
        assert reaper.resume("attach") == "OK"
        assert box.used_seen_afresh() == SHARED
        importer.kill_alone()
        assert box.used_seen_afresh() == 0


def test_a_process_that_joins_while_the_slot_is_reclaimed_finds_nothing(box: Box) -> None:
    with (
        box.holding(SHARED, shared_by=KEY) as exporter,
        box.shell() as reaper,
        box.shell() as importer,
    ):
        importer.ask("attach")
        exporter.kill_alone()
        assert reaper.stops_at("SHARE_HIDDEN", 1, ["attach"])
        assert importer.ask(f"join {KEY}") == "0"
        assert box.used_seen_afresh() == 0, "the slow process withholds nothing"
        assert reaper.resume("attach") == "OK"
        assert box.used_seen_afresh() == 0


def test_where_half_of_all_slots_are_taken_nothing_is_shared(box: Box) -> None:
    data = bytearray(box.region.read_bytes())
    for number in range(names.MAX_SLOTS // 2):
        offset = box.slot_offset(number)
        struct.pack_into("<II", data, offset, region_file.SLOT_LIVE, 1)
        struct.pack_into("<Q", data, offset + region_file.SLOT.offset("generation"), 1)
    box.region.write_bytes(data)
    with box.region.open("r+b") as file, box.shell() as exporter:
        _lock_first_half(file.fileno())
        assert exporter.ask(f"reserve 0 {SHARED}") == "OK"
        assert exporter.ask(f"share 0 {SHARED} {KEY}") == "0"
        assert box.use().used_bytes == SHARED
        exporter.kill_alone()
        until(lambda: box.used_seen_afresh() == 0, "the end of the exporter's own charge")


def _lock_first_half(descriptor: int) -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, region_file.LOCK_LIVE, names.MAX_SLOTS // 2, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)


def test_where_a_mapping_keeps_no_lock_nothing_is_shared(box: Box) -> None:
    """overlayfs keeps no lock. A holder without a visible lock would be reclaimed while it runs."""
    with box.shell() as exporter:
        exporter.ask(f"reserve 0 {SHARED}")
        assert exporter.ask("drop-lock") == "OK"
        assert exporter.ask(f"share 0 {SHARED} {KEY}") == "0"
        assert box.used_seen_afresh() == SHARED
