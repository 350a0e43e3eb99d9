"""A fleet with a backlog."""

from __future__ import annotations

import pytest

from tests.scheduler.decisions.backlog_scene import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
