"""The tree keeps its limits of size, and docs/size.md has them."""

from __future__ import annotations

import re

import pytest

from tools import size

PARTS = [pytest.param(part, id=part.name) for part in size.PARTS]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_its_limit(part: size.Part) -> None:
    lines = size.lines(part, size.counted())
    assert lines > 0
    assert lines <= part.limit or part.name not in size.ENFORCED, (
        "python -m tools.size shows all parts"
    )


@pytest.mark.parametrize("part", PARTS)
def test_the_document_has_the_limits(part: size.Part) -> None:
    anything = re.escape(size.row(part, 0)).replace(r"\ 0\ ", r"\ [\d,]+\ ")
    assert re.search(f"^{anything}", size.DOCUMENT.read_text(), re.MULTILINE)


def test_recorded_data_and_generated_modules_are_not_counted() -> None:
    counted = size.counted()
    assert "tools/size.py" in counted
    left_out = re.compile(r"(^|/)recorded/|_(pb2|ffi)\.py$|\.gz$")
    assert [path for path in counted if left_out.search(path)] == []
