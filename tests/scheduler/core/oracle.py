"""The core's rules as plain loops over plain values: the oracle for the vectorised core.

The oracle is slow and simple, and does not use columns. The core must return the same results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from scheduler.core.fleet import Gpu
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Phase, Policy, Request, Scope, largest_first


@dataclass
class Held:
    """A GPU and the shares that pods hold. A share is (bytes, percent of core or None)."""

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


Slots = Sequence[Sequence[int]]
"""The indices of the GPUs of each container."""


def size_of(container: ContainerRequest, gpu: Gpu) -> int:
    if container.memory_bytes is not None:
        return container.memory_bytes
    assert container.memory_ratio is not None
    return max(1, math.floor(gpu.total_bytes * container.memory_ratio))


def live_sets(containers: Sequence[ContainerRequest]) -> Iterator[list[int]]:
    """Yield sets of containers that run at the same time, as indices: one set for each init
    container, and one for the main containers."""
    numbered = list(enumerate(containers))
    for number, container in numbered:
        if container.phase is Phase.INIT:
            sidecars = [(other, each) for other, each in numbered if each.phase is Phase.SIDECAR]
            yield [number, *(other for other, each in sidecars if each.order < container.order)]
    yield [number for number, container in numbered if container.phase is not Phase.INIT]


def holds(
    containers: Sequence[ContainerRequest], on: Sequence[int], gpu: Gpu
) -> tuple[int, int | None]:
    """Return the peak, as bytes and core, that the containers with the indices `on` hold."""
    size, core = 0, 0
    for alive in live_sets(containers):
        here = [containers[number] for number in alive if number in on]
        size = max(size, sum(size_of(container, gpu) for container in here))
        core = max(core, sum(container.core_percent or 0 for container in here))
    return size, core or None


def is_mixed(containers: Sequence[ContainerRequest], on: Sequence[int]) -> bool:
    """Return whether some of these containers request core, and others do not."""
    return len({containers[number].core_percent is None for number in on}) > 1


def fits_together(held: Held, containers: Sequence[ContainerRequest], on: Sequence[int]) -> bool:
    """Return whether the containers fit on the GPU together. In a mixed pod, the containers without
    core leave 99 percent to the others."""
    size, core = holds(containers, on, held.gpu)
    if is_mixed(containers, on) and not (held.has_core(None) and held.has_core((core or 0) + 1)):
        return False
    return held.has_memory(size) and held.has_core(core)


def is_selected(gpu: Gpu, request: Request) -> bool:
    return all(line.matches(gpu.labels, gpu.model, gpu.uuid) for line in request.selector)


def good_gpus(node: Node, request: Request) -> list[int]:
    of = enumerate(node.gpus)
    return [slot for slot, held in of if held.gpu.usable and is_selected(held.gpu, request)]


def part_of(gpu: Gpu, scope: Scope) -> object:
    """Return the GPU's NUMA node, PCIe root, UUID or node, by scope, or None if unknown."""
    by_scope = {Scope.NUMA_NODE: gpu.numa, Scope.PCIE: gpu.root, Scope.DEVICE: gpu.uuid}
    return by_scope.get(scope, "node")


def is_allowed(node: Node, request: Request, chosen: Slots) -> bool:
    """Return whether the choice is valid. Each container's GPUs must be distinct and usable. All
    chosen GPUs must be in one part of the scope, and the containers on each must fit."""
    good = set(good_gpus(node, request))
    for container, slots in zip(request.containers, chosen, strict=True):
        if len(set(slots)) != container.gpus or not set(slots) <= good:
            return False
    used = {slot for slots in chosen for slot in slots}
    parts = {part_of(node.gpus[slot].gpu, request.scope) for slot in used}
    if len(parts) != 1 or None in parts:
        return False
    on = {slot: [number for number, slots in enumerate(chosen) if slot in slots] for slot in used}
    return all(fits_together(node.gpus[slot], request.containers, on[slot]) for slot in used)


def greedy(node: Node, request: Request) -> bool:
    """Place containers from the largest, each on the fullest GPU with room. Return if all fit."""
    parts: dict[object, list[int]] = {}
    for slot in good_gpus(node, request):
        parts.setdefault(part_of(node.gpus[slot].gpu, request.scope), []).append(slot)
    parts.pop(None, None)
    return any(_greedy_within(node, request, slots) for slots in parts.values())


def _greedy_within(node: Node, request: Request, slots: Sequence[int]) -> bool:
    containers = request.containers
    on: dict[int, list[int]] = {slot: [] for slot in slots}

    def left(slot: int) -> int:
        """Return the bytes that are left on the GPU."""
        held = node.gpus[slot]
        if request.policy is Policy.FIRST:
            return 0
        placed = holds(containers, on[slot], held.gpu)[0] if on[slot] else 0
        return held.gpu.total_bytes - held.used_bytes - placed

    largest = max(held.gpu.total_bytes for held in node.gpus)
    for number in largest_first(request, largest):
        fitting = sorted(
            (left(slot), slot)
            for slot in slots
            if fits_together(node.gpus[slot], containers, [*on[slot], number])
        )
        if len(fitting) < containers[number].gpus:
            return False
        for _, slot in fitting[: containers[number].gpus]:
            on[slot].append(number)
    return True


def why_not_alone(node: Node, request: Request, container: ContainerRequest) -> Reason:
    wanted, many = container.gpus, container.gpus > 1
    if len(node.gpus) < wanted:
        return Reason.TOO_FEW_GPUS
    selected = [h for h in node.gpus if is_selected(h.gpu, request)]
    if len(selected) < wanted:
        return Reason.NO_GPU_SELECTED
    large = [h for h in selected if size_of(container, h.gpu) <= h.gpu.total_bytes]
    if len(large) < wanted:
        return Reason.GPU_TOO_SMALL
    fine = [h for h in large if h.gpu.usable]
    if len(fine) < wanted:
        return Reason.NO_USABLE_GPU
    memory = [h for h in fine if h.has_memory(size_of(container, h.gpu))]
    core = [h for h in fine if h.has_core(container.core_percent)]
    both = [h for h in memory if h in core]
    if len(both) < wanted:
        lacks_memory, lacks_core = len(memory) < wanted, len(core) < wanted
        if many:
            return Reason.GPUS
        if lacks_memory == lacks_core:
            return Reason.MEMORY_AND_CORE
        return Reason.MEMORY if lacks_memory else Reason.CORE
    parts = [part_of(h.gpu, request.scope) for h in both]
    enough = [part for part in parts if part is not None and parts.count(part) >= wanted]
    return Reason.FITS if enough else Reason.SCOPE


def why_not(node: Node, request: Request) -> Reason:
    """Return why the request does not fit, or FITS."""
    if node.blocked_by is not Reason.FITS:
        return node.blocked_by
    if request.isolation and not node.isolates:
        return Reason.NOT_ISOLATING
    alive = [[request.containers[n] for n in live] for live in live_sets(request.containers)]
    whole = (sum(each.gpus for each in live if each.memory_ratio == 1) for live in alive)
    if node.partitioned and max(whole) > 1:
        return Reason.PARTITIONED
    for container in request.containers:
        reason = why_not_alone(node, request, container)
        if reason is not Reason.FITS:
            return reason
    if len(request.containers) > 1:
        fits = greedy(node, request)
    else:
        ways = combinations(range(len(node.gpus)), request.containers[0].gpus)
        fits = any(is_allowed(node, request, [slots]) for slots in ways)
    return Reason.FITS if fits else Reason.TOGETHER


def first_choice(node: Node, request: Request, policy: Policy) -> int:
    """Return the slot of the best GPU for a request of one container and one GPU."""
    (container,) = request.containers
    good = good_gpus(node, request)
    unused = [node.gpus[slot].gpu for slot in good if not node.gpus[slot].shares]

    def near(gpu: Gpu) -> list[int]:
        """Return how many unused GPUs have the GPU's link, its root, and its NUMA node."""
        others = [(other.link, other.root, other.numa) for other in unused]
        mine = (gpu.link, gpu.root, gpu.numa)
        return [
            sum(value is not None and other[level] == value for other in others)
            for level, value in enumerate(mine)
        ]

    def rank(slot: int) -> tuple[bool, float, list[int], int]:
        held = node.gpus[slot]
        memory = (held.used_bytes + size_of(container, held.gpu)) / held.gpu.total_bytes
        full = (memory + (held.used_core + (container.core_percent or 0)) / 100) / 2
        if policy is Policy.FIRST:
            return (False, 0, [], slot)
        if policy is Policy.SPREAD:
            return (False, round(full, 9), [], slot)
        return (not held.shares, -round(full, 9), near(held.gpu), slot)

    return min((slot for slot in good if is_allowed(node, request, [[slot]])), key=rank)
