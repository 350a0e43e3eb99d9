"""The cards of this machine, as NVML names them, and the person's choice among them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pynvml

from gpu import context_size

_CONTEXT_DEADLINE_S: Final = 30


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


def context_bytes(card: Card) -> int:
    """What a CUDA context takes of the card by itself, measured in a process made for it."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card.uuid}
    command = [sys.executable, "-m", "gpu.context_size", card.uuid]
    try:
        done = subprocess.run(
            command,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONTEXT_DEADLINE_S,
        )
        if done.returncode != 0:
            raise CardError((done.stderr.strip().splitlines() or ["no message"])[-1])
        return context_size.parse(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise CardError(f"no answer in {_CONTEXT_DEADLINE_S} s") from error
    except context_size.UnknownSizeError as error:
        raise CardError(str(error)) from error


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
