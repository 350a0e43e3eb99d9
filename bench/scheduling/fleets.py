"""Makes the scheduler's state of a fleet in use, with equal GPUs and pods of a few sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lab.cluster.fleet_objects import Shape, gpu_uuid
from scheduler.core.fleet import Gpu
from scheduler.decisions.state import State
from scheduler.kubernetes.facts import DeviceFacts, HeldGpu, LeaseFacts, NodeFacts, PodFacts

GPU_BYTES: Final = 80 << 30
GPUS: Final = 8
_PERCENTS: Final = (5, 10, 15)
"""What an existing pod may hold of its GPU. Five such pods leave at least a quarter of it free."""
ASKED: Final = 20
"""The percentage of a GPU that each measured pod requests."""


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    pods: int

    @property
    def shape(self) -> Shape:
        return Shape(self.nodes, GPUS, GPU_BYTES)


MIDDLE: Final = Size(1_000, 40_000)
LARGE: Final = Size(5_000, 40_000)


def held(size: Size) -> Iterator[tuple[int, int, int]]:
    """Yield for each existing pod the node's number, the GPU's minor, and the percentage that it
    holds of the GPU's core and memory. The pods are evenly distributed over all GPUs."""
    chance = random.Random(6)
    for number in range(size.pods):
        node, minor = divmod(number % (size.nodes * GPUS), GPUS)
        yield node, minor, chance.choice(_PERCENTS)


def filled(size: Size) -> State:
    state = State()
    names = size.shape.node_names()
    for number, name in enumerate(names):
        gpus = tuple(
            Gpu(gpu_uuid(number, minor), minor, GPU_BYTES, numa=minor // 4, root=f"pci{minor}")
            for minor in range(GPUS)
        )
        state.observe_device(DeviceFacts(name, f"uid-{name}", gpus))
        state.observe_node(NodeFacts(name, f"uid-{name}", isolates=True))
        state.observe_lease(LeaseFacts(name, "now"), 0.0)
    for number, (node, minor, percent) in enumerate(held(size)):
        uuid, taken = gpu_uuid(node, minor), GPU_BYTES * percent // 100
        holds = (HeldGpu(uuid, minor, taken, percent, percent),)
        facts = PodFacts(f"there-{number}", "there", f"p{number}", names[node], False, holds)
        state.observe_pod(facts)
    return state
