"""Quantities: absent, value and invalid are distinct, values are exact, and there is no default."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.contract.quantity import Absent, Invalid, Value, format_binary, parse, share_of
from tests.support import GIB

VALUES = [
    *((raw, 50) for raw in ("50", 50)),
    *((raw, 0) for raw in ("0", "-0")),
    *((raw, 1) for raw in ("500m", "1n", "1E-1")),
    *((raw, 2) for raw in ("1500m", 1.5)),
    *((raw, 1000) for raw in ("1k", "1e3")),
    ("+7", 7),
    ("11520Mi", 11520 * 2**20),
    ("12Gi", 12 * GIB),
    ("1.5Gi", 3 * GIB // 2),
    (".5Ki", 512),
    ("5.", 5),
    ("160G", 160 * 10**9),
    ("12E2", 1200),
    ("1E", 10**18),
    ("9223372036854775807", 2**63 - 1),
    ("41600608Ki", 41600608 * 1024),
]
INVALID = [
    *("", " 1", "1 ", "1Gb", "1GiB", "0x10", "12 potatoes", "-1", "-1Gi", "1e", "1e9999"),
    *("nan", "inf", "9223372036854775808", "8Ei", "1" * 65, "\u0661"),
    *(True, [], {}, float("inf"), float("nan")),
]


@pytest.mark.parametrize(("raw", "amount"), VALUES, ids=[repr(raw) for raw, _ in VALUES])
def test_value(raw: object, amount: int) -> None:
    assert parse(raw) == Value(amount)


@pytest.mark.parametrize("raw", INVALID, ids=repr)
def test_an_invalid_quantity_has_a_reason(raw: object) -> None:
    result = parse(raw)
    assert isinstance(result, Invalid)
    assert result.reason


def test_absent_is_not_zero() -> None:
    assert parse(None) == Absent()


@given(st.integers(0, 2**63 - 1))
def test_canonical_form_reads_back(amount: int) -> None:
    assert parse(format_binary(amount)) == Value(amount)


@pytest.mark.parametrize(
    ("total", "percent", "text"),
    [
        (24 * GIB, 10, "2576980377"),
        (24 * GIB, 50, "12Gi"),
        (46068 * 2**20, 50, "23034Mi"),
        (83201216 * 1024, 50, "41600608Ki"),
        (24 * GIB, 0, "0"),
    ],
)
def test_ratio_to_bytes_as_koordinator_writes_it(total: int, percent: int, text: str) -> None:
    assert format_binary(share_of(total, percent)) == text


@given(st.integers(0, 2**60), st.lists(st.integers(0, 100), max_size=20))
def test_shares_never_exceed_the_gpu(total: int, percents: list[int]) -> None:
    granted = [p for i, p in enumerate(percents) if sum(percents[: i + 1]) <= 100]
    if sum(granted) <= 100:
        assert sum(share_of(total, p) for p in granted) <= total
    assert all(share_of(total, p) <= Fraction(total * p, 100) for p in percents)
