"""The chart, as Helm renders it."""

from __future__ import annotations

import pytest

from tools import chart

pytestmark = pytest.mark.cluster


def test_the_committed_manifest_is_the_charts() -> None:
    assert chart.INSTALL.read_text() == chart.install(), "run `python -m tools.chart`"
