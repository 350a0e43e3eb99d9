"""What the node's ResourceSlice has of each GPU, and when it is written."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from gpuslice.contract import names
from nri_plugin.claims import slices
from nri_plugin.policy.gpu_modes import Mode
from nri_plugin.policy.memory_limits import MIG_MODE
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.totals import Entry

GIB = 1 << 30
ENTRIES = [
    Entry(Gpu(f"GPU-{letter}", minor, 8 * GIB, model="H200", root="pci0"), healthy=True)
    for minor, letter in enumerate("ABC")
]


def _slice(entries: list[Entry], ready: bool = True, **used: int) -> Any:
    of = {f"gpu-{letter}": amount for letter, amount in used.items()}
    return slices.resource_slice("node-a", "uid", entries, of, ready)


def _devices(made: Any) -> list[str]:
    return [device["name"] for device in made["spec"]["devices"]]


def test_the_fullest_gpu_is_first() -> None:
    assert _devices(_slice(ENTRIES)) == ["gpu-a", "gpu-b", "gpu-c"]
    assert _devices(_slice(ENTRIES, b=1, c=GIB)) == ["gpu-c", "gpu-b", "gpu-a"]


def test_a_device_says_which_gpu_it_is() -> None:
    (first, *_) = _slice(ENTRIES)["spec"]["devices"]
    assert first["attributes"] == {
        names.ATTRIBUTE_UUID: {"string": "GPU-A"},
        names.ATTRIBUTE_MODEL: {"string": "H200"},
        names.ATTRIBUTE_PCI_ROOT: {"string": "pci0"},
        names.ATTRIBUTE_MINOR: {"int": 0},
    }


def test_gpus_that_cannot_be_shared_are_left_out() -> None:
    a, b, c = ENTRIES
    cases = {
        MIG_MODE: replace(a, gpu=replace(a.gpu, problem=MIG_MODE)),
        "its memory is not known": replace(b, gpu=replace(b.gpu, memory_bytes=0)),
        "it is excluded": replace(c, mode=Mode.EXCLUDED, why="it is excluded"),
    }
    for why, entry in cases.items():
        assert slices.left_out(entry) == why
    assert _devices(_slice([*cases.values()])) == []


def test_a_slice_is_written_when_more_than_the_times_of_taints_differs() -> None:
    a, *others = ENTRIES
    failed = [replace(a, gpu=replace(a.gpu, problem="reset", lost=True)), *others]
    wanted = _slice(failed, ready=False)
    stored = copy.deepcopy(wanted)
    for device in stored["spec"]["devices"]:
        for taint in device["taints"]:
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    assert not slices.differs(stored, wanted)
    effects = [[taint["effect"] for taint in each["taints"]] for each in wanted["spec"]["devices"]]
    assert effects == [["NoExecute", "NoSchedule"], ["NoSchedule"], ["NoSchedule"]]
    for other in (_slice(failed), _slice(ENTRIES, ready=False), _slice(failed, ready=False, b=1)):
        assert slices.differs(stored, other)
    untainted = _slice(ENTRIES)
    stored = copy.deepcopy(untainted)
    for device in stored["spec"]["devices"]:
        del device["taints"]
    assert not slices.differs(stored, untainted), "the API server leaves out an empty list"
