from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simgpu.host import Host


@pytest.fixture
def sim_dir() -> Iterator[Path]:
    """A directory that is not there yet, with a path short enough for the sockets in it."""
    base = Path(tempfile.mkdtemp(prefix="sim-"))
    yield base / "d"
    shutil.rmtree(base)


@pytest.fixture
def host(sim_dir: Path) -> Iterator[Host]:
    """Two cards of 40 GiB; no C is needed to speak to them."""
    made = Host(sim_dir)
    made.up()
    yield made
    made.down()


@pytest.fixture
def driver_host(sim_dir: Path, build_dir: Path) -> Iterator[Host]:
    """The same with the driver's libraries built: env(), python() and smi() work."""
    made = Host(sim_dir, build_dir=build_dir)
    made.up()
    yield made
    made.down()
