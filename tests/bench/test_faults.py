"""The fault matrix's own judgement: what counts as unprotected, what the table and status say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.faults import outcome, report
from bench.faults.cases import INJECTIONS
from bench.faults.outcome import Cell, Kind, Outcome
from bench.faults.report import Column
from tools.releases import DEFAULT, RELEASES

LIMIT = 4 << 30
HELD = {"driver": True, "init": 0, "total": LIMIT, "free": LIMIT - 1, "filled": 0, "more": 2}
ABSENT = {"driver": False, "init": -1, "total": 0, "free": 0, "filled": -1, "more": -1}
GPU = ("0.sock",)


@pytest.mark.parametrize(
    ("devices", "seen", "kind"),
    [
        (GPU, HELD, Kind.LIMITED),
        ((), ABSENT, Kind.NO_GPU),
        (GPU, {**HELD, "init": 800}, Kind.LIMITED),
        (GPU, ABSENT, Kind.UNPROTECTED),
        (GPU, {**HELD, "total": 10 * LIMIT}, Kind.UNPROTECTED),
        (GPU, {**HELD, "more": 0}, Kind.UNPROTECTED),
        (GPU, {**HELD, "free": LIMIT}, Kind.UNPROTECTED),
        (GPU, {**HELD, "filled": -1, "free": 0}, Kind.UNPROTECTED),
        ((), {**HELD, "total": 10 * LIMIT}, Kind.UNPROTECTED),
    ],
    ids=[
        *("held", "nothing there", "our library refuses", "a GPU without a driver", "all of it"),
        *("one more than the grant", "a context that costs nothing", "no context", "hidden GPU"),
    ],
)
def test_a_container_is_protected_if_it_is_limited_or_has_no_gpu(
    devices: Sequence[str], seen: dict[str, Any], kind: Kind
) -> None:
    assert outcome.inside(devices, seen, LIMIT).kind is kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("... gpuslice did not decide CreateContainer within 1.5 s", "late"),
        ("... gpuslice failed at CreateContainer: Struck", "error"),
        ('gpuslice refuses container "main"', "agent"),
        ('required plugin "gpuslice" not present', "required"),
        ("validator plugin 50-gpuslice failed: ttrpc: closed", "validator"),
        ("50-gpuslice failed to handle StartContainer request: ttrpc: closed", "policy"),
        ("no space left on device", "other"),
    ],
)
def test_a_refusal_names_the_component(text: str, said: str) -> None:
    assert outcome.refusal(text) == Outcome(Kind.REFUSED, said, text)


LIMITED, LOOSE = Outcome(Kind.LIMITED), Outcome(Kind.UNPROTECTED)
REFUSED = outcome.refusal(f"{'0f' * 32}: validator plugin x failed")


def _column(cell: Cell) -> Column:
    return Column(DEFAULT, True, {"hang": cell})


@pytest.mark.parametrize(
    ("cell", "status", "control_status"),
    [
        (Cell([LIMITED, REFUSED], [REFUSED, LIMITED]), 0, 1),
        (Cell([LIMITED, LOOSE], [LIMITED]), 1, 0),
        (Cell([REFUSED], [LOOSE, LIMITED]), 1, 0),
        (Cell([REFUSED], [REFUSED]), 1, 1),
    ],
    ids=["holds", "unprotected", "unprotected after it", "does not recover"],
)
def test_the_status_is_the_matrixs_verdict(cell: Cell, status: int, control_status: int) -> None:
    assert report.verdict([_column(cell)], control=False) == status
    assert report.verdict([_column(cell)], control=True) == control_status


def test_without_a_gpu_is_good_enough_only_where_nothing_validates() -> None:
    cells = {"never": Cell([Outcome(Kind.NO_GPU)], [LIMITED])}
    assert not Column(DEFAULT, True, cells).holds
    assert Column(DEFAULT, False, cells).holds


def test_the_table_has_the_counts_and_the_versions() -> None:
    cell = Cell([LIMITED, REFUSED, REFUSED], [LIMITED])
    on, off = _column(cell), Column(DEFAULT, False, {"hang": Cell([LOOSE], [])})
    old = Column(RELEASES["1.7"], False, {"hang": cell})
    text = report.document([old, on, off], control=False)
    first, second = text.split("## With it off")
    assert "| containerd 1.7.35 (NRI 0.8.0) | containerd 2.4.2 (NRI 0.12.3) |" in first
    assert first.count("| **0**: 1 limited, 2 refused (2 validator) ") == 2
    assert "| hang | **1**: 1 UNPROTECTED; DOES NOT RECOVER |" in second
    assert "`ID: validator plugin x failed`" in second
    assert "switched off" in report.document([off], control=True)


def test_each_injection_has_a_strike_or_scenes() -> None:
    assert all(injection.strike or injection.scenes for injection in INJECTIONS.values())
