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


@contextmanager
def _up(build_dir: Path = Path()) -> Iterator[Host]:
    with _directory() as directory:
        made = Host(directory, build_dir=build_dir)
        made.up()
        yield made
        made.down()


@pytest.fixture
def sim_dir() -> Iterator[Path]:
    """A directory to be created, with a path short enough for the sockets in it."""
    with _directory() as directory:
        yield directory


@pytest.fixture
def host() -> Iterator[Host]:
    """A host with two GPUs of 40 GiB, for clients in Python. It has no driver libraries."""
    with _up() as made:
        yield made


@pytest.fixture
def driver_host(build_dir: Path) -> Iterator[Host]:
    """A host with two GPUs and the driver's libraries, for env(), python() and smi()."""
    with _up(build_dir) as made:
        yield made


@pytest.fixture(scope="session")
def _idle_host(build_dir: Path) -> Iterator[Host]:
    with _up(build_dir) as made:
        yield made


@pytest.fixture
def idle_host(_idle_host: Host) -> Iterator[Host]:
    """A host like `driver_host` that tests share. It has no clients at a test's beginning."""
    yield _idle_host
    _idle_host.send_clients_away()
