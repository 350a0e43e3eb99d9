"""The tree keeps the limits of size in tools/size.py, and ADR 45's limit of source files in one
folder."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import PurePath

import pytest

from tests.support import ROOT
from tools import size

PARTS = [pytest.param(part, id=part.name) for part in size.PARTS]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_its_limit(part: size.Part) -> None:
    lines = size.lines(part, size.counted())
    assert 0 < lines <= part.limit, "python -m tools.size shows all parts"


def test_recorded_data_and_generated_modules_are_not_counted() -> None:
    counted = size.counted()
    assert "tools/size.py" in counted
    left_out = re.compile(r"(^|/)recorded/|_(pb2|ffi)\.py$|\.gz$")
    assert [path for path in counted if left_out.search(path)] == []


def test_no_folder_has_too_many_files_of_source() -> None:
    """Documents and tables of data are not counted."""
    patterns = ("*.py", "*.c", "*.h", "*.S", "*.def", "*.go")
    options = ("--cached", "--others", "--exclude-standard")
    listed = subprocess.check_output(["git", "ls-files", *options, *patterns], cwd=ROOT, text=True)
    names = [name for name in listed.splitlines() if (ROOT / name).exists()]
    counts = Counter(str(PurePath(name).parent) for name in names)
    assert counts["shim/src/region"] > 1
    assert {folder: count for folder, count in counts.items() if count > 25} == {}
