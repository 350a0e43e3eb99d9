"""Fixtures: directories of a node, and of sockets."""

from __future__ import annotations

import tempfile
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


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a directory for sockets, whose paths may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="k-") as directory:
        yield Path(directory)
