from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simgpu.host import Host


@contextmanager
def _directory() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="sim-"))
    yield base / "d"
    shutil.rmtree(base)


@pytest.fixture
def sim_dir() -> Iterator[Path]:
    """A directory that does not exist yet, with a path short enough for the sockets in it."""
    with _directory() as directory:
        yield directory


@contextmanager
def _up(directory: Path, build_dir: Path | None = None) -> Iterator[Host]:
    made = Host(directory, build_dir=build_dir)
    made.up()
    yield made
    made.down()


@pytest.fixture
def host(sim_dir: Path) -> Iterator[Host]:
    """Two GPUs of 40 GiB; their clients need no C code."""
    with _up(sim_dir) as made:
        yield made


@pytest.fixture
def driver_host(sim_dir: Path, build_dir: Path) -> Iterator[Host]:
    """The same with the driver's libraries built: env(), python() and smi() work."""
    with _up(sim_dir, build_dir) as made:
        yield made


@pytest.fixture(scope="session")
def _plain_host() -> Iterator[Host]:
    with _directory() as directory, _up(directory) as made:
        yield made


@pytest.fixture(scope="session")
def _plain_driver_host(build_dir: Path) -> Iterator[Host]:
    with _directory() as directory, _up(directory, build_dir) as made:
        yield made


@pytest.fixture
def shared_host(_plain_host: Host) -> Iterator[Host]:
    """A host for tests that leave the GPUs unchanged. Their clients end with them."""
    yield _plain_host
    _plain_host.send_clients_away()


@pytest.fixture
def idle_host(_plain_driver_host: Host) -> Iterator[Host]:
    """A driver_host for tests that leave the GPUs unchanged."""
    yield _plain_driver_host
    _plain_driver_host.send_clients_away()
