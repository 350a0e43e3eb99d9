"""A machine that is busy with other things fails no property test."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st


def slowly(number: int) -> int:
    time.sleep(0.5)  # a second in all is what Hypothesis finds too slow
    return number


@settings(max_examples=4, database=None)
@given(st.integers().map(slowly))
def test_a_property_may_take_its_time(number: int) -> None:
    time.sleep(0.25)  # 0.2 s is what Hypothesis allows an example
