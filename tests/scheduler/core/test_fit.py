"""The nodes on which a request fits: ratios to the byte, selectors, and the texts of reasons."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from fractions import Fraction

import pytest

from scheduler.core.fit import MAX_CELLS, fit, max_rows, texts
from scheduler.core.fleet import MAX_BYTES, Fleet, Gpu
from scheduler.core.reasons import Reason
from scheduler.core.request import ContainerRequest, Request, Requirement
from tests.scheduler.core.one_node import add, fleet

Mi, Gi = 2**20, 2**30
TOTAL = 24 * Gi
LARGE = 46068 * Mi


def asking(amount: int | Fraction, *selector: Requirement) -> Request:
    """Return a request for an amount of bytes, or for a ratio."""
    ratio = amount if isinstance(amount, Fraction) else None
    size = None if isinstance(amount, Fraction) else amount
    container = ContainerRequest("main", memory_bytes=size, memory_ratio=ratio)
    return Request([container], selector=selector)


def fits(fleet: Fleet, request: Request, *names: str) -> list[bool]:
    """Return for each of these nodes whether the request fits. The default is all nodes."""
    rows = fleet.rows_of(names) if names else fleet.all_rows()
    return [bool(each) for each in fit(fleet, request, rows)[0]]


@pytest.mark.parametrize("totals", [[LARGE], [997, LARGE, MAX_BYTES]], ids=len)
def test_a_ratio_fits_to_the_byte(totals: list[int]) -> None:
    """The product of a large GPU's bytes and a ratio of 18 digits exceeds int64."""
    chance = random.Random(len(totals))
    ratios = [*map(Fraction, ("0.125", "0.1", "0.57", "1/3", "1e-18", "0.999999999999999999"))]
    ratios += [Fraction(chance.randint(1, 10**18), 10**18) for _ in range(20)]
    for ratio in ratios:
        for spare in (0, 1):
            fleet = Fleet()
            for number, total in enumerate(totals):
                used = total - max(1, math.floor(total * ratio)) + spare
                add(fleet, f"n{number}", [(used, 1)], of=[Gpu(f"GPU-{number}", 0, total)])
            assert fits(fleet, asking(ratio)) == [not spare] * len(totals), ratio


@pytest.mark.parametrize("memory_bytes", [None, 1])
@pytest.mark.parametrize("ratio", [None, Fraction(), Fraction(1), Fraction(101, 100)])
def test_a_container_requests_either_bytes_or_a_ratio_over_0_up_to_1(
    memory_bytes: int | None, ratio: Fraction | None
) -> None:
    if (memory_bytes, ratio) in ((1, None), (None, 1)):
        ContainerRequest("main", memory_bytes=memory_bytes, memory_ratio=ratio)
    else:
        with pytest.raises(ValueError, match="memory_ratio: "):
            ContainerRequest("main", memory_bytes=memory_bytes, memory_ratio=ratio)


def test_more_containers_are_examined_on_fewer_nodes_at_once() -> None:
    several = [ContainerRequest(f"c{n}", order=n, memory_bytes=1) for n in range(17)]
    assert [max_rows(asking(1)), max_rows(Request(several))] == [MAX_CELLS, MAX_CELLS // 17]


# --- selectors


def selecting(model: str) -> Request:
    return asking(1, Requirement("model", frozenset({model})))


def labelled(name: str, total: int, *labels: Mapping[str, str]) -> list[Gpu]:
    return [Gpu(f"{name}-{minor}", minor, total, labels=each) for minor, each in enumerate(labels)]


def test_sizes_and_label_sets_of_replaced_gpus_are_reused() -> None:
    """Each replaced GPU brings a new set of labels, because labels include a serial number. Old
    sets are dropped, and results that are cached for a selector stay correct."""
    fleet, half = add(Fleet(), "b", of=labelled("b", 7, {})), Fraction(1, 2)
    for total in range(3000, 1000, -100):
        model = ("A100", "T4")[total // 100 % 2]
        labels = [{"model": model, "serial": f"{total}-{n}"} for n in range(4)]
        add(fleet, "a", of=labelled("a", total, *labels))
        assert fits(fleet, asking(half), "a", "b") == [True, True]
        assert fits(fleet, selecting("A100"), "a", "b") == [model == "A100", False]
    assert len(fleet.sizes) == 3, "the sizes, and that of no GPU"
    assert len(fleet._labels) <= 1 + 4
    for number in range(30):
        labels = [{"model": model, "serial": f"{number}-{n}"} for n in range(8)]
        add(fleet, f"{model}-{number}", of=labelled(f"n{number}", 1000, *labels))
        model = "T4" if model == "A100" else "A100"
    assert sum(fits(fleet, selecting("A100"))) == 15


# --- texts, which kube-scheduler counts


def of_fleet(fleet: Fleet, request: Request) -> dict[Reason, str]:
    rows = fleet.all_rows()
    return dict(texts(fleet, request, rows, fit(fleet, request, rows)[1]))


def said(request: Request, *left: int, core: int = 0) -> dict[Reason, str]:
    """Return the reasons for nodes of one GPU. left: each GPU's free bytes. core: held percent."""
    made = Fleet()
    for number, free in enumerate(left):
        add(made, f"n{number}", [(TOTAL - free, core)], of=[Gpu(f"GPU-{number}", 0, TOTAL)])
    return of_fleet(made, request)


@pytest.mark.parametrize(
    ("asked", "left", "near"),
    [
        (20 * Gi, 15 * Gi // 2, "7.5 GiB of the 20 GiB"),
        (20 * Gi, 20 * Gi - 1, "19.9 GiB of the 20 GiB"),
        (20 * Gi + 1, 20 * Gi, "20 GiB of the 20.1 GiB"),
        (2 * Gi, Gi, "1 GiB of the 2 GiB"),
        (Gi, 100 * Mi, "100 MiB of the 1024 MiB"),
        (Mi, 0, "0 MiB of the 1 MiB"),
        (Fraction(1, 2), 6 * Gi, "25 of the 50 percent"),
        (Fraction(1, 2), 6 * Gi - 1, "24 of the 50 percent"),
        (Fraction(1, 8), 3 * Gi - 1, "12.4 of the 12.5 percent"),
    ],
)
def test_a_reason_has_the_largest_free_slice(asked: int | Fraction, left: int, near: str) -> None:
    """kube-scheduler uses the text as a Go format, in which a percent sign would be misread."""
    text = f"{Reason.MEMORY.text} (largest free slice {near} requested)"
    assert said(asking(asked), left, left) == {Reason.MEMORY: text}


def test_the_free_slice_of_core() -> None:
    core = Request([ContainerRequest("main", core_percent=50, memory_bytes=1)])
    text = f"{Reason.CORE.text} (largest free slice 30 of the 50 percent requested)"
    assert said(core, Gi, core=70) == {Reason.CORE: text}
    assert said(asking(1), Gi, core=100) == {Reason.CORE: Reason.CORE.text}


def test_other_reasons_and_several_containers_have_the_text_alone() -> None:
    second = ContainerRequest("b", order=1, memory_bytes=1)
    several = Request([*asking(20 * Gi).containers, second])
    assert said(several, Gi) == {Reason.MEMORY: Reason.MEMORY.text}
    assert said(asking(20 * Gi), Gi, 2 * Gi) == {Reason.MEMORY: Reason.MEMORY.text}, "nodes differ"
    assert said(asking(25 * Gi), Gi) == {Reason.GPU_TOO_SMALL: Reason.GPU_TOO_SMALL.text}
    assert said(asking(Gi), Gi) == {Reason.FITS: "fits"}
    assert said(asking(Gi)) == {}


def test_only_gpus_of_the_selector_are_near() -> None:
    of = [Gpu("GPU-0", 0, TOTAL, labels={"model": "T4"}), Gpu("GPU-1", 1, TOTAL)]
    node, request = fleet([(20 * Gi, 0)], [(Gi, 0)], of=of), asking(20 * Gi, Requirement("model"))
    (text,) = of_fleet(node, request).values()
    assert text.endswith("(largest free slice 4 GiB of the 20 GiB requested)")


def test_every_reason_has_a_text_of_its_own() -> None:
    assert len({reason.text for reason in Reason}) == len(Reason)
    assert not any(character.isdigit() for reason in Reason for character in reason.text)
