"""A container without a grant, for limits by the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.conftest import Host
from tests.shim.region.environment_scene import Container


@pytest.fixture
def container(host: Host, tmp_path: Path) -> Container:
    return Container(host, tmp_path)
