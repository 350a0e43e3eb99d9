"""A node's directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.host.files import RunDirectory
from tests.nri_plugin.objects import clear
from tests.nri_plugin.service_scene import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    clear(RunDirectory(host.run, lambda: 1))
