"""The cards of this machine, as NVML names them, and the person's choice among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml


class CardError(Exception):
    """No such card, or no driver; the text says what was asked and what there is."""


@dataclass(frozen=True, slots=True)
class Card:
    """A physical card; `minor` is its number on this machine."""

    uuid: str
    minor: int
    name: str
    memory_bytes: int


def present() -> Sequence[Card]:
    """All cards, in the driver's order."""
    with _nvml():
        return tuple(
            _describe(pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        )


def choose(cards: Sequence[Card], wanted: Sequence[str]) -> Sequence[Card]:
    """The cards that `wanted` names by UUID or index; all of them where it names none."""
    if not cards:
        raise CardError("the driver reports no card")
    by_name = {str(index): card for index, card in enumerate(cards)}
    by_name |= {card.uuid: card for card in cards}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        there = ", ".join(f"{index} ({card.uuid})" for index, card in enumerate(cards))
        raise CardError(f"--card {unknown[0]}: no such card; there is {there}")
    chosen = [by_name[name] for name in wanted] or list(cards)
    if len({card.uuid for card in chosen}) != len(chosen):
        raise CardError(f"--card {' '.join(wanted)}: a card is named twice")
    return chosen


def _describe(handle: object) -> Card:
    return Card(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    )


@contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CardError(
            f"no NVIDIA driver answers on this machine ({error}); "
            "to try without one, start the simulated driver: python -m simgpu up --help"
        ) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise CardError(f"the NVIDIA driver failed: {error}") from error
    finally:
        pynvml.nvmlShutdown()
