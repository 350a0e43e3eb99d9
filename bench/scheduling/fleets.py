"""A fleet in use, as the scheduler's state has it: equal GPUs, pods of a few sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lab.cluster.fleet_objects import Shape, gpu_uuid
from scheduler.core.fleet import Gpu
from scheduler.decisions.state import State
from scheduler.kubernetes.facts import DeviceFacts, HeldGpu, LeaseFacts, NodeFacts, PodFacts

GPU_BYTES: Final = 80 << 30
GPUS: Final = 8
_PERCENTS: Final = (5, 10, 15)
"""Each pod's part of its GPU. Five per GPU leave at least a quarter free."""
_ZONES: Final = 10
_SEED: Final = 6


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    pods: int

    @property
    def shape(self) -> Shape:
        return Shape(self.nodes, GPUS, GPU_BYTES, zones=_ZONES)


@dataclass(frozen=True, slots=True)
class Mix:
    """The pods of a run. percents: what each container of a pod requests of a GPU. misfits: every
    tenth pod requests more memory of one GPU than any GPU has; kube-scheduler compares it with the
    node's total and finds it enough. zone: of the nodes that they select; "" for any."""

    about: str
    percents: Sequence[int] = (20,)
    misfits: bool = False
    zone: str = ""

    def asked(self, number: int) -> Sequence[int]:
        return self.percents if self.fits(number) else (125,)

    def fits(self, number: int) -> bool:
        return not self.misfits or number % 10 != 9


ONE: Final = Mix("pods of one container")
TENTH: Final = Mix("10 % of the pods fit nowhere", misfits=True)
ZONE: Final = Mix("pods that select a tenth of the nodes", zone="zone-3")
WIDE: Final = Mix("pods of 12 containers", (5,) * 12)

SMALL: Final = Size(100, 4_000)
MIDDLE: Final = Size(1_000, 40_000)
LARGE: Final = Size(5_000, 40_000)


def held(size: Size) -> Iterator[tuple[int, int, int]]:
    """Return each existing pod's node number, GPU minor, percent of core and memory. The pods are
    evenly distributed over all GPUs."""
    chance = random.Random(_SEED)
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
