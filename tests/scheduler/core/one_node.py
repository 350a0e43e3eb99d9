"""Fleets of one or a few nodes, each made by one call."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.fit import fit
from scheduler.core.fleet import Fleet, Gpu, GpuAmount
from scheduler.core.place import Placement, place
from scheduler.core.reasons import Reason
from scheduler.core.request import Policy, Request

Held = tuple[int, int | None]
TOTAL = 1000


def gpus(count: int, total_bytes: int = TOTAL) -> Sequence[Gpu]:
    return [Gpu(f"GPU-{minor}", minor, total_bytes) for minor in range(count)]


def fleet(*held: Sequence[Held], of: Sequence[Gpu] | None = None) -> Fleet:
    """Return a fleet of one node. Each argument lists the shares of a GPU as (bytes, core)."""
    return add(Fleet(), "n1", *held, of=of)


def add(made: Fleet, name: str, *held: Sequence[Held], of: Sequence[Gpu] | None = None) -> Fleet:
    row = made.add(name)
    made.set_gpus(row, of if of is not None else gpus(len(held)))
    made.set_node(row, Reason.FITS, True, False)
    for slot, shares in enumerate(held):
        for size, core in shares:
            made.take(row, GpuAmount(slot, size, core))
    return made


def placed(of: Fleet, request: Request, default: Policy = Policy.BINPACK) -> Placement:
    found = place(of, request, of.row_of("n1"), default)
    assert isinstance(found, Placement)
    return found


def minors(of: Fleet, request: Request, name: str = "n1") -> dict[str, list[int]] | Reason:
    """Return the minors of each container's GPUs, or the reason. Asserts that `fit` agrees."""
    found = place(of, request, of.row_of(name))
    possible, reasons = fit(of, request, of.rows_of([name]))
    assert bool(possible[0]) == isinstance(found, Placement)
    if not isinstance(found, Placement):
        return Reason(int(reasons[0]))
    chosen: dict[str, list[int]] = {}
    for share in found.shares:
        chosen.setdefault(share.container, []).append(share.minor)
    return chosen
