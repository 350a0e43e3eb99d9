"""The columns: growth, reuse of rows and label sets."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from scheduler.core.fit import MAX_CELLS, fit, max_rows
from scheduler.core.fleet import MAX_BYTES, NO_ROW, Fleet, Gpu, GpuAmount
from scheduler.core.place import Placement, place
from scheduler.core.reasons import UNRESOLVABLE, Reason
from scheduler.core.request import Attribute, ContainerRequest, Request, Requirement
from tests.scheduler.core.one_node import add

ANY = Request([ContainerRequest("main", memory_bytes=1)])


def test_reused_rows_keep_nothing_of_the_former_node() -> None:
    fleet = add(add(Fleet(), "a", [(10, 1)]), "b", [])
    first = fleet.row_of("a")
    assert fleet.add("a") == first
    fleet.remove("a")
    assert fleet.row_of("a") == NO_ROW
    assert fit(fleet, ANY, fleet.rows_of(["a", "b"]))[1].tolist() == [Reason.NODE_UNKNOWN, 0]
    assert fleet.add("c") == first
    assert fit(fleet, ANY, fleet.rows_of(["c"]))[1].tolist() == [Reason.NO_DEVICE]
    assert fleet.used_bytes[first].sum() == 0
    assert [fleet.names[row] for row in fleet.all_rows()] == ["b", "c"]


def test_the_row_of_no_node_never_fits() -> None:
    assert fit(Fleet(), ANY, Fleet().rows_of(["unknown"]))[1].tolist() == [Reason.NODE_UNKNOWN]
    assert fit(Fleet(), ANY, Fleet().rows_of([]))[0].tolist() == []


@pytest.mark.parametrize("totals", [[46068 * 2**20], [997, 46068 * 2**20, MAX_BYTES]], ids=len)
def test_a_ratio_fits_to_the_byte(totals: list[int]) -> None:
    """GPUs have one size or several, up to the largest; the last ratio overflows int64."""
    chance = random.Random(len(totals))
    ratios = [*map(Fraction, ("0.125", "0.1", "0.57", "1/3", "0.999999999999999999"))]
    ratios += [Fraction(chance.randint(1, 10**18), 10**18) for _ in range(20)]
    for ratio in ratios:
        request = Request([ContainerRequest("main", memory_ratio=ratio)])
        for spare in (0, 1):
            fleet = Fleet()
            for number, total in enumerate(totals):
                used = total - max(1, math.floor(total * ratio)) + spare
                add(fleet, f"n{number}", [(used, 1)], of=[Gpu(f"GPU-{number}", 0, total)])
            rows = fleet.rows_of([f"n{number}" for number in range(len(totals))])
            assert fit(fleet, request, rows)[0].tolist() == [not spare] * len(totals), ratio


def test_the_smallest_ratio_is_a_byte() -> None:
    request = Request([ContainerRequest("main", memory_ratio=Fraction(1, 10**18))])
    gpus = [Gpu("GPU-a", 0, 1000), Gpu("GPU-b", 1, 1000, usable=False)]
    fleet = add(Fleet(), "a", [(999, 1)], of=gpus)
    rows = fleet.rows_of(["a"])
    assert fit(fleet, request, rows)[0].all()
    fleet.take(int(rows[0]), GpuAmount(0, 1, None))
    assert not fit(fleet, request, rows)[0].any()


def test_sizes_of_replaced_gpus_are_reused() -> None:
    fleet, half = Fleet(), Request([ContainerRequest("main", memory_ratio=Fraction(1, 2))])
    for total in range(1000, 1020):
        add(fleet, "a", of=[Gpu("GPU-a", 0, total)])
        assert fit(fleet, half, fleet.rows_of(["a"]))[0].all()
    assert len(fleet.sizes) == 2, "the size, and that of no GPU"
    assert len(fleet.sizes.shares(Fraction(1, 2))) <= 3


def test_values_that_make_no_request() -> None:
    with pytest.raises(ValueError, match="exactly one must be set"):
        ContainerRequest("main")
    with pytest.raises(ValueError, match="exactly one must be set"):
        ContainerRequest("main", memory_bytes=1, memory_ratio=Fraction(1, 2))
    for ratio in (Fraction(0), Fraction(101, 100)):
        with pytest.raises(ValueError, match="memory_ratio: invalid value"):
            ContainerRequest("main", memory_ratio=ratio)
    with pytest.raises(ValueError, match="at least one container"):
        Request([])


def test_every_reason_has_a_text_of_its_own() -> None:
    assert len({reason.text for reason in Reason}) == len(Reason)
    assert Reason.FITS not in UNRESOLVABLE
    assert not any(character.isdigit() for reason in Reason for character in reason.text)


def selecting(label: str, value: str) -> Request:
    return Request(ANY.containers, selector=[Requirement(label, frozenset({value}))])


def labelled(name: str, *labels: Mapping[str, str]) -> list[Gpu]:
    return [Gpu(f"{name}-{minor}", minor, 100, labels=each) for minor, each in enumerate(labels)]


def test_label_sets_of_replaced_gpus_are_reused() -> None:
    """GPUs with a label of their own, such as a serial number, come and go for weeks."""
    fleet = Fleet()
    for round_ in range(20):
        for node in ("a", "b"):
            labels = [{"model": "A100", "serial": f"{node}{round_}{n}"} for n in range(4)]
            add(fleet, node, of=labelled(node, *labels))
    fleet.remove("a")
    assert len(fleet._labels) <= 1 + 2 * 4
    add(fleet, "a", of=labelled("a", {"model": "T4"}, {"model": "T4"}))
    assert fit(fleet, selecting("model", "T4"), fleet.rows_of(["a", "b"]))[0].tolist() == [True, 0]


def test_a_selector_is_matched_once_against_each_label_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later filter costs no pass over the GPUs, where all have different labels."""
    fleet = Fleet()
    for node in range(30):
        labels = [{"model": "A100" if node else "T4", "serial": f"{node}-{n}"} for n in range(8)]
        add(fleet, f"n{node}", of=labelled(f"n{node}", *labels))
    matched: list[Mapping[str, str]] = []
    whole = Requirement.matches

    def counted(line: Requirement, labels: Mapping[str, str], model: str) -> bool:
        matched.append(labels)
        return whole(line, labels, model)

    monkeypatch.setattr(Requirement, "matches", counted)
    rows = fleet.rows_of(["n0", "n1"])
    for _ in range(10):
        assert fit(fleet, selecting("model", "A100"), rows)[0].tolist() == [False, True]
    assert len(matched) == 1 + 30 * 8
    add(fleet, "n30", of=labelled("n30", {"model": "A100", "serial": "30-0"}))
    assert fit(fleet, selecting("model", "A100"), fleet.rows_of(["n30"]))[0].tolist() == [True]
    assert len(matched) == 2 + 30 * 8


def test_gpus_are_selected_by_model_and_uuid_without_a_label_set_of_each() -> None:
    fleet = Fleet()
    for node, model in (("a", "NVIDIA A100-SXM4-80GB"), ("b", "Tesla T4"), ("c", "")):
        gpus = [Gpu(f"GPU-{node}{minor}", minor, 100, model=model) for minor in range(4)]
        add(fleet, node, of=gpus)
    assert len(fleet._labels) == 3  # the GPUs of c have the empty set

    def chosen(node: str, *selector: Requirement) -> str | None:
        wanted = replace(ANY, selector=selector)
        placed = place(fleet, wanted, fleet.row_of(node))
        fits = fit(fleet, wanted, fleet.rows_of([node]))
        assert fits[0].tolist() == [isinstance(placed, Placement)]
        return placed.shares[0].uuid if isinstance(placed, Placement) else None

    of_model, of_uuid = Attribute.MODEL, Attribute.UUID
    a100 = Requirement("", frozenset({"h100", "a100"}), False, of_model)
    assert [chosen(node, a100) for node in "abc"] == ["GPU-a0", None, None]
    no_t4 = Requirement("", frozenset({"t4"}), True, of_model)
    assert [chosen(node, no_t4) for node in "abc"] == ["GPU-a0", None, "GPU-c0"]
    one = Requirement("", frozenset({"GPU-a2", "GPU-b3", "GPU-c"}), False, of_uuid)
    assert [chosen(node, one) for node in "abc"] == ["GPU-a2", "GPU-b3", None]
    not_that = Requirement("", frozenset({"GPU-b3", "GPU-a0"}), True, of_uuid)
    assert [chosen(node, one, not_that) for node in "abc"] == ["GPU-a2", None, None]
    assert [chosen(node, not_that) for node in "abc"] == ["GPU-a1", "GPU-b0", "GPU-c0"]


def test_more_containers_are_examined_on_fewer_nodes_at_once() -> None:
    several = [ContainerRequest(f"c{n}", order=n, memory_bytes=1) for n in range(17)]
    assert [max_rows(ANY), max_rows(Request(several))] == [MAX_CELLS, MAX_CELLS // 17]
