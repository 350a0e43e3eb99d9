"""A cluster for the tests of each module, in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.whole import Whole, running


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running("2x23040Mi") as cluster:
        yield cluster
