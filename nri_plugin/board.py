"""Where a card is on its board: what Linux tells of a PCI device, and who reaches whom by NVLink.

Reads sysfs, which answers from memory; called in the inventory's child alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYSFS: Final = Path("/sys")
_DOMAIN_DIGITS: Final = 4
"""NVML writes the PCI domain with eight digits, Linux with four, or more where it needs them."""


@dataclass(frozen=True, slots=True)
class Place:
    """numa: None where the board has one node, or does not say. root: as in pci0000:3a."""

    numa: int | None
    root: str


NOWHERE: Final = Place(None, "")


def name(bus_id: str | bytes) -> str:
    """As Linux writes that bus id of NVML's: 0000:3b:00.0."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(_DOMAIN_DIGITS, '0')}:{rest}"


def place(bus_id: str | bytes, sysfs: Path = _SYSFS) -> Place:
    """Of the card with that bus id, as NVML writes it."""
    try:
        device = (sysfs / "bus/pci/devices" / name(bus_id)).resolve(strict=True)
        numa = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return NOWHERE
    roots = [part for part in device.parts if part.startswith("pci")]
    return Place(numa if numa >= 0 else None, roots[0] if roots else "")


def links(cards: int, linked: Iterable[tuple[int, int]]) -> Sequence[str]:
    """For each card the name of its group: those that reach each other by NVLink, by way of others
    too; "" where it reaches none."""
    group = list(range(cards))
    for one, other in linked:
        old, new = max(group[one], group[other]), min(group[one], group[other])
        group = [new if each == old else each for each in group]
    return [f"nvlink-{each}" if group.count(each) > 1 else "" for each in group]
