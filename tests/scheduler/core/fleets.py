"""Random fleets and requests, small enough to try every combination."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.reasons import Reason
from scheduler.core.request import (
    Attribute,
    ContainerRequest,
    Phase,
    Policy,
    Request,
    Requirement,
    Scope,
    ratio_of_percent,
)
from tests.scheduler.core import one_node
from tests.scheduler.core.oracle import Held, Node

BLOCKED_BY = (Reason.NO_DEVICE, Reason.AGENT_LEASE_EXPIRED, Reason.AGENT_NOT_READY)
REACHED = frozenset(Reason) - {
    Reason.NODE_UNKNOWN,
    Reason.DEVICE_STALE,
    Reason.DEVICE_UNREADABLE,
    Reason.AGENT_MISSING,
    Reason.LEASES_LOST,
}
"""Reasons that random fleets must produce. The core treats the others as it treats BLOCKED_BY."""
TOTALS = (100, 101, 997, 1000, 1600)
RATIOS = tuple(map(Fraction, ("1/2", "33/100", "1/8", "1/3", "0.333", "0.57", "0.29", "0.999")))
PHASES = (Phase.MAIN, Phase.MAIN, Phase.INIT, Phase.SIDECAR)
POLICIES = (None, None, Policy.SPREAD, Policy.FIRST)


def nodes(chance: random.Random, most: int = 6) -> Sequence[Node]:
    return [node(chance, f"n{number}") for number in range(chance.randint(1, most))]


def node(chance: random.Random, name: str) -> Node:
    total = chance.choice(TOTALS)
    gpus = []
    for minor in range(chance.choice((0, 1, 2, 2, 3, 4, 4))):
        gpu = Gpu(
            f"GPU-{name}-{minor}",
            minor,
            total if chance.random() < 0.8 else chance.choice(TOTALS),
            usable=chance.random() < 0.9,
            numa=chance.choice((None, 0, 0, 1)),
            root=chance.choice((None, "pci0000:00", "pci0000:80")),
            link=chance.choice((None, "a", "b")),
            labels={"pool": chance.choice(("a", "b"))} if chance.random() < 0.7 else {},
            model=chance.choice(("", "NVIDIA A100-SXM4-80GB", "Tesla T4")),
        )
        gpus.append(held(chance, gpu))
    blocked_by = chance.choice((*[Reason.FITS] * 12, *BLOCKED_BY))
    return Node(name, gpus, blocked_by, chance.random() < 0.8, chance.random() < 0.1)


def held(chance: random.Random, gpu: Gpu) -> Held:
    """Return the GPU with random shares. A few overcommit it, as another scheduler may."""
    there = Held(gpu)
    for _ in range(chance.choice((0, 0, 1, 2, 3))):
        size = chance.randint(1, gpu.total_bytes)
        core = chance.choice((None, chance.randint(0, 100), 50, 100))
        fits = there.has_memory(size) and there.has_core(core)
        if fits or chance.random() < 0.03:
            there.shares.append((size, core))
    return there


def request(chance: random.Random) -> Request:
    count = chance.choice((1, 1, 1, 1, 2, 3))
    lines = chance.choice((1, 1, 1, 2, 3)) if chance.random() < 0.25 else 0
    return Request(
        [container(chance, number) for number in range(count)],
        chance.choice((None, *Policy)),
        [requirement(chance) for _ in range(lines)],
        chance.choice((*[Scope.NODE] * 5, Scope.NUMA_NODE, Scope.PCIE, Scope.DEVICE)),
        chance.random() < 0.3,
    )


def requirement(chance: random.Random) -> Requirement:
    of = chance.choice(tuple(Attribute))
    if of is Attribute.UUID:
        gpus = [f"GPU-n{node}-{minor}" for node in range(6) for minor in range(4)]
        listed: frozenset[str] | None = frozenset(chance.sample(gpus, chance.choice((1, 8, 16))))
    elif of is Attribute.MODEL:
        listed = chance.choice((frozenset({"a100", "h100"}), frozenset({"t4"}), frozenset({""})))
    else:
        listed = chance.choice((frozenset({"a"}), None))
    key = "pool" if of is Attribute.LABEL else ""
    return Requirement(key, listed, chance.random() < 0.3, of)


def container(chance: random.Random, number: int) -> ContainerRequest:
    by_ratio = chance.random() < 0.5
    return ContainerRequest(
        f"c{number}",
        chance.choice(PHASES),
        number,
        gpus=chance.choice((1, 1, 1, 2, 3)),
        core_percent=chance.choice((None, 100, 50, chance.randint(1, 100))),
        memory_ratio=ratio(chance) if by_ratio else None,
        memory_bytes=None if by_ratio else chance.choice((1, 100, chance.randint(1, 1700))),
    )


def ratio(chance: random.Random) -> Fraction:
    """Return 1 for a whole GPU, an element of RATIOS, or a whole percent."""
    percent = ratio_of_percent(chance.randint(1, 100))
    return chance.choice((Fraction(1), chance.choice(RATIOS), percent))


# --- too many GPUs to try every combination


def large_nodes(chance: random.Random) -> Sequence[Node]:
    """Return nodes of different sizes, some of which differ only in the links between GPUs."""
    made = [large_node(chance, f"n{number}") for number in range(3)]
    for name in ("twin", "triplet"):
        alike = [
            Held(replace(held.gpu, link=chance.choice((None, "a", "b"))), held.shares)
            for held in made[0].gpus
        ]
        made.append(Node(name, alike))
    return made


def large_node(chance: random.Random, name: str) -> Node:
    total, gpus = chance.choice((23_040, 40_000, 81_920)), []
    for minor in range(chance.choice((4, 8, 8, 16))):
        numa, root = minor // 4, f"pci0000:{minor // 2}"
        held = Held(Gpu(f"GPU-{name}-{minor}", minor, total, numa=numa, root=root))
        for _ in range(chance.choice((0, 1, 1, 2))):
            percent = chance.randint(5, 45)
            held.shares.append((total * percent // 100, chance.randint(5, 45)))
        gpus.append(held)
    return Node(name, gpus)


def tight_request(chance: random.Random, on: Node) -> Request:
    """Return a request that needs most of the node's free capacity. Some containers need two GPUs.
    There is hardly more than one solution, unless containers run at different times."""
    total = on.gpus[0].gpu.total_bytes
    left = [
        [100 - -(-held.used_bytes * 100 // total), held.most_core - held.used_core]
        for held in on.gpus
    ]
    phases = chance.choice(((Phase.MAIN,), PHASES))
    containers: list[ContainerRequest] = []
    for first in range(len(left)):
        for _ in range(chance.choice((1, 1, 2, 3))):
            of = left[first : first + chance.choice((1, 1, 2))]
            most = [min(each) for each in zip(*of, strict=True)]
            if min(most) <= 0:
                continue
            percent, core = (chance.randint(-(-each // 2), each) for each in most)
            for each in of:
                each[0] -= percent
                each[1] -= core
            size = total * percent // 100 if chance.random() < 0.3 else None
            ratio = ratio_of_percent(percent) if size is None else None
            number, phase = len(containers), chance.choice(phases)
            asked = ContainerRequest(f"c{number}", phase, number, len(of), core, size, ratio)
            containers.append(asked)
    chance.shuffle(containers)
    scope = chance.choice((*[Scope.NODE] * 6, Scope.NUMA_NODE))
    return Request(containers, chance.choice(POLICIES), (), scope)


def fleet(of: Sequence[Node]) -> Fleet:
    made = Fleet(nodes=2, gpus=1)
    for each in of:
        shares, gpus = [held.shares for held in each.gpus], [held.gpu for held in each.gpus]
        one_node.add(made, each.name, *shares, of=gpus)
        made.set_node(made.row_of(each.name), each.blocked_by, each.isolates, each.partitioned)
    return made
