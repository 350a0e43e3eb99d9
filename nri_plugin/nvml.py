"""What NVML tells of this node's cards: the child that the inventory asks (inventory.py).

Run as `python -m nri_plugin.nvml`; prints one JSON list. It runs every few seconds, so it imports
little: half of what it takes is Python's own start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pynvml

from nri_plugin import board


def ask_nvml() -> Sequence[Mapping[str, Any]]:
    """Every card that NVML names. One that does not even tell its name is said on stderr."""
    pynvml.nvmlInit()
    try:
        found, handles = [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(_card(handle))
                handles.append(handle)
            except pynvml.NVMLError as error:
                sys.stderr.write(f"card {index}: {error}\n")
        linked = [
            (one, other)
            for one, other in combinations(range(len(handles)), 2)
            if _by_nvlink(handles[one], handles[other])
        ]
        for index, link in enumerate(board.links(len(handles), linked)):
            found[index]["link"] = link
        return found
    finally:
        pynvml.nvmlShutdown()


def _card(handle: object) -> dict[str, Any]:
    card: dict[str, Any] = {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "memory_bytes": 0,
    }
    try:
        card["memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError as error:
        card["problem"] = str(error)
    try:
        place = board.place(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    except pynvml.NVMLError:  # a card in trouble may not say where it is
        place = board.NOWHERE
    return {**card, "numa": place.numa, "root": place.root}


def _by_nvlink(one: object, other: object) -> bool:
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # older drivers and small cards do not know the question
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def main() -> int:
    """The child's whole work; the last line on stderr says why there is no answer."""
    try:
        found = ask_nvml()
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
