"""Where a card is: from a sysfs made for the test, and groups of cards that reach each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_plugin import board
from nri_plugin.board import Place


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for name, numa in (("0000:3b:00.0", "1\n"), ("10000:01:00.0", "-1\n"), ("0000:05:00.0", "x")):
        device = tmp_path / "devices" / "pci0000:3a" / "0000:3a:00.0" / name
        device.mkdir(parents=True)
        (device / "numa_node").write_text(numa)
        link = tmp_path / "bus/pci/devices" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    return tmp_path


@pytest.mark.parametrize(
    ("bus_id", "found"),
    [
        ("00000000:3B:00.0", Place(1, "pci0000:3a")),
        (b"00000000:3B:00.0", Place(1, "pci0000:3a")),
        ("00010000:01:00.0", Place(None, "pci0000:3a")),
        ("00000000:05:00.0", board.NOWHERE),
        ("00000000:FF:00.0", board.NOWHERE),
        ("", board.NOWHERE),
        (b"\xff", board.NOWHERE),
    ],
)
def test_place(sysfs: Path, bus_id: str | bytes, found: Place) -> None:
    assert board.place(bus_id, sysfs) == found


@pytest.mark.parametrize(
    ("linked", "found"),
    [
        ([], ["", "", "", ""]),
        ([(0, 1)], ["nvlink-0", "nvlink-0", "", ""]),
        ([(1, 3), (0, 2)], ["nvlink-0", "nvlink-1", "nvlink-0", "nvlink-1"]),
        ([(0, 1), (2, 3), (1, 2)], ["nvlink-0"] * 4),
    ],
)
def test_links(linked: list[tuple[int, int]], found: list[str]) -> None:
    assert board.links(4, linked) == found
