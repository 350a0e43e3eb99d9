"""The texts of reasons, which kube-scheduler counts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from scheduler.core.fit import fit, texts
from scheduler.core.fleet import Fleet, Gpu
from scheduler.core.reasons import UNRESOLVABLE, Reason
from scheduler.core.request import ContainerRequest, Request, Requirement
from tests.scheduler.core.one_node import Held, add

Mi, Gi = 2**20, 2**30


def said(request: Request, *left: int, core: int = 0) -> dict[Reason, str]:
    """Texts for nodes of one GPU of 24 GiB with the given free bytes, and some core held."""
    fleet = Fleet()
    for number, free in enumerate(left):
        held: list[Held] = [(24 * Gi - free, core)]
        add(fleet, f"n{number}", held, of=[Gpu(f"GPU-{number}", 0, 24 * Gi)])
    rows = fleet.rows_of([f"n{number}" for number in range(len(left))])
    return dict(texts(fleet, request, rows, fit(fleet, request, rows)[1]))


def by_size(size: int) -> Request:
    return Request([ContainerRequest("main", memory_bytes=size)])


@pytest.mark.parametrize(
    ("asked", "left", "near"),
    [
        (20 * Gi, 15 * Gi // 2, "largest free slice 7.5 GiB of the 20 GiB requested"),
        (20 * Gi, 20 * Gi - 1, "largest free slice 19.9 GiB of the 20 GiB requested"),
        (20 * Gi + 1, 20 * Gi, "largest free slice 20 GiB of the 20.1 GiB requested"),
        (Gi, 100 * Mi, "largest free slice 100 MiB of the 1024 MiB requested"),
        (2000 * Mi, 68 * Mi, "largest free slice 68 MiB of the 2000 MiB requested"),
        (Mi, 0, "largest free slice 0 MiB of the 1 MiB requested"),
    ],
)
def test_a_reason_has_the_largest_free_slice_where_all_nodes_agree(
    asked: int, left: int, near: str
) -> None:
    assert said(by_size(asked), left, left) == {Reason.MEMORY: f"{Reason.MEMORY.text} ({near})"}


def test_a_reason_has_no_free_slice_where_nodes_differ() -> None:
    assert said(by_size(20 * Gi), Gi, 2 * Gi) == {Reason.MEMORY: Reason.MEMORY.text}


def test_percent() -> None:
    """kube-scheduler uses the text as a Go format; a percent sign would corrupt it."""
    half = Request([ContainerRequest("main", memory_ratio=Fraction(1, 2))])
    assert said(half, 6 * Gi)[Reason.MEMORY].endswith(
        "(largest free slice 25 of the 50 percent requested)"
    )
    eighth = Request([ContainerRequest("main", memory_ratio=Fraction(1, 8))])
    assert said(eighth, 3 * Gi - 1)[Reason.MEMORY].endswith(
        "(largest free slice 12.4 of the 12.5 percent requested)"
    )
    core = Request([ContainerRequest("main", core_percent=50, memory_bytes=1)])
    assert said(core, Gi, core=70)[Reason.CORE].endswith(
        "(largest free slice 30 of the 50 percent requested)"
    )
    assert said(by_size(1), Gi, core=100) == {Reason.CORE: Reason.CORE.text}


def test_other_reasons_and_several_containers_have_the_text_alone() -> None:
    several = Request(
        [
            ContainerRequest("a", memory_bytes=20 * Gi),
            ContainerRequest("b", order=1, memory_bytes=1),
        ]
    )
    assert said(several, Gi) == {Reason.MEMORY: Reason.MEMORY.text}
    assert said(by_size(25 * Gi), Gi) == {Reason.GPU_TOO_SMALL: Reason.GPU_TOO_SMALL.text}
    assert said(by_size(Gi), Gi) == {Reason.FITS: "fits"}
    assert said(by_size(Gi)) == {}
    assert Reason.GPU_TOO_SMALL in UNRESOLVABLE
    assert Reason.MEMORY not in UNRESOLVABLE


def test_only_gpus_of_the_selector_are_near() -> None:
    fleet = Fleet()
    of = [Gpu("GPU-0", 0, 24 * Gi, labels={"model": "T4"}), Gpu("GPU-1", 1, 24 * Gi)]
    add(fleet, "n1", [(20 * Gi, 0)], [(Gi, 0)], of=of)
    request = Request(by_size(20 * Gi).containers, selector=[Requirement("model")])
    rows = fleet.rows_of(["n1"])
    (text,) = texts(fleet, request, rows, fit(fleet, request, rows)[1]).values()
    assert text.endswith("(largest free slice 4 GiB of the 20 GiB requested)")
