"""A node whose NVML a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nri_plugin.gpu.measured_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
