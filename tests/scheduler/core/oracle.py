"""The core's rules as plain loops over plain values: the oracle for the vectorised core.

Slow and simple; uses no columns. The core must return the same results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from scheduler.core.fleet import Gpu
from scheduler.core.reasons import Reason
from scheduler.core.request import (
    ContainerRequest,
    Phase,
    Policy,
    Request,
    Scope,
    largest_first,
)


@dataclass
class Held:
    """A GPU, and what pods hold of it: (bytes, core or None)."""

    gpu: Gpu
    shares: list[tuple[int, int | None]] = field(default_factory=list)

    @property
    def used_bytes(self) -> int:
        return sum(size for size, _ in self.shares)

    @property
    def used_core(self) -> int:
        return sum(core for _, core in self.shares if core is not None)

    @property
    def most_core(self) -> int:
        return 99 if any(core is None for _, core in self.shares) else 100

    def has_memory(self, size: int) -> bool:
        return self.used_bytes + size <= self.gpu.total_bytes

    def has_core(self, core: int | None) -> bool:
        if core is None:
            return self.used_core < 100
        return self.used_core + core <= self.most_core


@dataclass
class Node:
    name: str
    gpus: list[Held]
    blocked_by: Reason = Reason.FITS
    isolates: bool = True
    partitioned: bool = False


def size_of(container: ContainerRequest, gpu: Gpu) -> int:
    if container.memory_bytes is not None:
        return container.memory_bytes
    assert container.memory_ratio is not None
    return max(1, math.floor(gpu.total_bytes * container.memory_ratio))


def is_whole(container: ContainerRequest) -> bool:
    return container.memory_ratio == 1


def live_sets(containers: Sequence[ContainerRequest]) -> Iterator[list[int]]:
    """Indices of the containers whose containers run at the same time, for each moment of the pod's
    life."""
    for number, container in enumerate(containers):
        if container.phase is Phase.INIT:
            before = [
                other
                for other, sidecar in enumerate(containers)
                if sidecar.phase is Phase.SIDECAR and sidecar.order < container.order
            ]
            yield [number, *before]
    yield [
        number for number, container in enumerate(containers) if container.phase is not Phase.INIT
    ]


def holds(
    containers: Sequence[ContainerRequest], on: Sequence[int], gpu: Gpu
) -> tuple[int, int | None]:
    """Sum that the containers with the indices `on` hold of the GPU."""
    size, core = 0, 0
    for alive in live_sets(containers):
        here = [containers[number] for number in alive if number in on]
        size = max(size, sum(size_of(container, gpu) for container in here))
        core = max(core, sum(container.core_percent or 0 for container in here))
    return size, None if containers[on[0]].core_percent is None else core


def is_selected(gpu: Gpu, request: Request) -> bool:
    return all(line.matches(gpu.labels, gpu.model, gpu.uuid) for line in request.selector)


def good_gpus(node: Node, request: Request) -> list[int]:
    return [
        slot
        for slot, held in enumerate(node.gpus)
        if held.gpu.usable and is_selected(held.gpu, request)
    ]


def part_of(gpu: Gpu, scope: Scope) -> object:
    """GPUs with equal values lie within the scope; None: in no part."""
    return {
        Scope.NODE: "node",
        Scope.NUMA_NODE: gpu.numa,
        Scope.PCIE: gpu.root,
        Scope.DEVICE: gpu.uuid,
    }[scope]


def is_allowed(node: Node, request: Request, chosen: Sequence[Sequence[int]]) -> bool:
    """Whether the chosen GPUs, slots by container, are distinct, usable and within the scope, and
    whether everything placed on each fits."""
    good = good_gpus(node, request)
    for container, slots in zip(request.containers, chosen, strict=True):
        if len(set(slots)) != container.gpus or not set(slots) <= set(good):
            return False
    used = sorted({slot for slots in chosen for slot in slots})
    parts = {part_of(node.gpus[slot].gpu, request.scope) for slot in used}
    if len(parts) != 1 or None in parts:
        return False
    for slot in used:
        held = node.gpus[slot]
        on = [number for number, slots in enumerate(chosen) if slot in slots]
        if len({request.containers[number].core_percent is None for number in on}) > 1:
            return False
        size, core = holds(request.containers, on, held.gpu)
        if not held.has_memory(size) or not held.has_core(core):
            return False
    return True


def ways(node: Node, request: Request) -> Iterator[Sequence[Sequence[int]]]:
    slots = range(len(node.gpus))
    yield from product(*(combinations(slots, container.gpus) for container in request.containers))


def greedy(node: Node, request: Request) -> bool:
    """Whether all containers fit, the largest first, each on the fullest GPU on which it fits."""
    parts: dict[object, list[int]] = {}
    for slot in good_gpus(node, request):
        part = part_of(node.gpus[slot].gpu, request.scope)
        if part is not None:
            parts.setdefault(part, []).append(slot)
    return any(_greedy_within(node, request, slots) for slots in parts.values())


def _greedy_within(node: Node, request: Request, slots: Sequence[int]) -> bool:
    containers = request.containers
    on: dict[int, list[int]] = {slot: [] for slot in slots}

    def fits(slot: int, number: int) -> bool:
        held, there = node.gpus[slot], [*on[slot], number]
        if len({containers[each].core_percent is None for each in there}) > 1:
            return False
        size, core = holds(containers, there, held.gpu)
        return held.has_memory(size) and held.has_core(core)

    def left(slot: int) -> int:
        """Bytes."""
        held = node.gpus[slot]
        if request.policy is Policy.FIRST:
            return 0
        placed = holds(containers, on[slot], held.gpu)[0] if on[slot] else 0
        return held.gpu.total_bytes - held.used_bytes - placed

    largest = max(held.gpu.total_bytes for held in node.gpus)
    for number in largest_first(request, largest):
        fitting = sorted((left(slot), slot) for slot in slots if fits(slot, number))
        if len(fitting) < containers[number].gpus:
            return False
        for _, slot in fitting[: containers[number].gpus]:
            on[slot].append(number)
    return True


def why_not_alone(node: Node, request: Request, container: ContainerRequest) -> Reason:
    one = Reason.MEMORY_AND_CORE if container.gpus == 1 else Reason.GPUS
    there = list(node.gpus)
    if len(there) < container.gpus:
        return Reason.TOO_FEW_GPUS
    selected = [h for h in there if is_selected(h.gpu, request)]
    if len(selected) < container.gpus:
        return Reason.NO_GPU_SELECTED
    large = [h for h in selected if size_of(container, h.gpu) <= h.gpu.total_bytes]
    if len(large) < container.gpus:
        return Reason.GPU_TOO_SMALL
    fine = [h for h in large if h.gpu.usable]
    if len(fine) < container.gpus:
        return Reason.NO_USABLE_GPU
    memory = [h for h in fine if h.has_memory(size_of(container, h.gpu))]
    core = [h for h in fine if h.has_core(container.core_percent)]
    both = [h for h in memory if h in core]
    if len(memory) < container.gpus and len(core) < container.gpus:
        return one
    if len(memory) < container.gpus:
        return Reason.MEMORY if container.gpus == 1 else Reason.GPUS
    if len(core) < container.gpus:
        return Reason.CORE if container.gpus == 1 else Reason.GPUS
    if len(both) < container.gpus:
        return one
    parts = [part_of(h.gpu, request.scope) for h in both]
    enough = [part for part in parts if part is not None and parts.count(part) >= container.gpus]
    return Reason.FITS if enough else Reason.SCOPE


def why_not(node: Node, request: Request) -> Reason:
    """FITS if the request fits."""
    if node.blocked_by is not Reason.FITS:
        return node.blocked_by
    if request.isolation and not node.isolates:
        return Reason.NOT_ISOLATING
    whole = (
        sum(
            request.containers[number].gpus
            for number in alive
            if is_whole(request.containers[number])
        )
        for alive in live_sets(request.containers)
    )
    if node.partitioned and max(whole) > 1:
        return Reason.PARTITIONED
    for container in request.containers:
        reason = why_not_alone(node, request, container)
        if reason is not Reason.FITS:
            return reason
    if len(request.containers) > 1:
        return Reason.FITS if greedy(node, request) else Reason.TOGETHER
    if any(is_allowed(node, request, chosen) for chosen in ways(node, request)):
        return Reason.FITS
    return Reason.TOGETHER


def fullness_after(held: Held, container: ContainerRequest) -> float:
    memory = (held.used_bytes + size_of(container, held.gpu)) / held.gpu.total_bytes
    return (memory + (held.used_core + (container.core_percent or 0)) / 100) / 2


def first_choice(node: Node, request: Request, policy: Policy) -> int:
    """The slot for the one GPU of the one container."""
    (container,) = request.containers
    fitting = [slot for slot in good_gpus(node, request) if is_allowed(node, request, [[slot]])]

    good = [node.gpus[slot].gpu for slot in good_gpus(node, request)]
    unused = [gpu for gpu in good if all(not h.shares for h in node.gpus if h.gpu is gpu)]

    def near(gpu: Gpu) -> list[int]:
        """Numbers of unused GPUs with the same link, root and NUMA node."""
        levels = [(c.link, c.root, c.numa) for c in unused]
        mine = (gpu.link, gpu.root, gpu.numa)
        return [
            sum(one is not None and level[at] == one for level in levels)
            for at, one in enumerate(mine)
        ]

    def rank(slot: int) -> tuple[bool, float, list[int], int]:
        held = node.gpus[slot]
        after = round(fullness_after(held, container), 9)
        if policy is Policy.FIRST:
            return (False, 0, [], slot)
        if policy is Policy.SPREAD:
            return (False, after, [], slot)
        return (not held.shares, -after, near(held.gpu), slot)

    return min(fitting, key=rank)
