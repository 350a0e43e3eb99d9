"""Machines with Docker daemons, one at a time, and a grant for each test."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.docker.machine import Machine
from lab.docker.programs import RELEASES

from .grants import LIBRARY, Grant

_SOURCE = Path(__file__).parent / "c" / "preload.c"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("preload") / LIBRARY
    strict = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1")
    subprocess.run(["gcc", *strict, "-shared", "-fPIC", _SOURCE, "-o", built], check=True)
    return built


@pytest.fixture(scope="session", params=list(RELEASES))
def running(build_dir: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a machine with one GPU of 40 GiB, as the last test left it."""
    release = RELEASES[request.param]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        release.ensure()  # shows its progress if the cache lacks programs
    with Machine(release) as machine:
        yield machine


@pytest.fixture
def machine(running: Machine) -> Iterator[Machine]:
    """Yield the machine without containers. Restart a dockerd that the test stopped or changed."""
    yield running
    if not running.as_started:
        running.restart_dockerd()
    for container in running.client.containers.list(all=True, ignore_removed=True):
        with contextlib.suppress(Exception):
            container.remove(force=True)


@pytest.fixture
def grant(machine: Machine, library: Path) -> Grant:
    made = Grant(machine, f"key{next(_numbers)}", library)
    made.write()
    return made
