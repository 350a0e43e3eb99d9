"""Kubernetes quantities as exact integers. Absent, value and invalid are three distinct results.

Invariants: no floats and no silent default. A caller must handle all three results, so that a
malformed limit can never be taken for "no limit".
Source: k8s.io/apimachinery resource.Quantity (suffixes, rounding up of fractions by Value()).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

_INT64_MAX: Final = 2**63 - 1

_SUFFIXES: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")

# No quantity that fits int64 needs more characters. int() takes quadratic time, which a hostile
# annotation could otherwise exploit.
_MAX_CHARS: Final = 64
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing was requested."""


@dataclass(frozen=True, slots=True)
class Value:
    """A whole number, at least 0, in the resource's unit. rounded: the text had a fraction. The API
    server accepts fractions only for Kubernetes' own resources."""

    amount: int
    rounded: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Invalid:
    """The request cannot be granted as written; `reason` states the cause for the user."""

    reason: str


Quantity = Absent | Value | Invalid


def parse(raw: object) -> Quantity:
    """Parse a quantity from JSON: a string, a number, or None (absent). Fractions round up, as
    Kubernetes' Value() does ("500m" is 1). Negative amounts and amounts over int64 are Invalid."""
    if raw is None:
        return Absent()
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        return Invalid(f"invalid value of type {type(raw).__name__}: must be a quantity")
    text = raw if isinstance(raw, str) else repr(raw)
    if len(text) > _MAX_CHARS:
        return Invalid(f"invalid value of {len(text)} characters: must have at most {_MAX_CHARS}")
    return _read(text)


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> Value | Invalid:
    """Parse the text. Results are cached, because a cluster's pods and GPUs repeat a few texts."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return Invalid(f"invalid value {text!r}: must be a quantity such as 50, 11520Mi or 12Gi")
    number, exponent = match["number"], match["exponent"]
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES[match["suffix"] or ""]
    exact: int | Fraction
    if scale.denominator == 1 and "." not in number:
        # This is the common case. Fraction would take ten times as long.
        exact = int(number) * scale.numerator
    else:
        exact = Fraction(number) * scale
    amount = -(-exact.numerator // exact.denominator)
    if exact < 0:
        return Invalid(f"invalid value {text!r}: must be at least 0")
    if amount > _INT64_MAX:
        return Invalid(f"invalid value {text!r}: must be at most 2^63-1")
    return Value(amount, exact != amount)


def format_binary(amount: int) -> str:
    """Return Kubernetes' canonical BinarySI form: the largest 1024 suffix that divides exactly."""
    if amount:
        for suffix in _BINARY:
            unit = int(_SUFFIXES[suffix])
            if amount % unit == 0:
                return f"{amount // unit}{suffix}"
    return str(amount)


def share_of(total: int, percent: int) -> int:
    """Return `percent` percent of `total`, rounded down. All conversions of ratios call this."""
    return total * percent // 100
