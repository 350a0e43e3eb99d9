"""A short directory for sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A socket's path has at most 107 bytes; pytest's own has 60 before a test writes anything."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as directory:
        yield Path(directory)
