"""An agent of another release: which library the next container mounts, and what the running ones
keep."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Process
from lab.node.lab import Lab

from ..conftest import GIB, hold_all, probe
from ..test_operations import sample

pytestmark = pytest.mark.node

OWN = Process(PYTHON_IMAGE)
SHARE = 10 * GIB


@pytest.fixture
def upgradable(lab: Lab) -> Iterator[Lab]:
    """Afterwards the agent has its own release again."""
    library = lab.library
    yield lab
    lab.library = library
    lab.stop_agent()
    lab.start_agent()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def upgrade(lab: Lab, data: bytes, number: int = signal.SIGTERM) -> None:
    """The agent of a release with that library replaces the present one."""
    lab.library = lab.directory / f"release-{sha256(data)[:8]}" / names.FILE_LIBRARY
    lab.library.parent.mkdir(exist_ok=True)
    lab.library.write_bytes(data)
    lab.stop_agent(number)
    lab.start_agent()


def releases(lab: Lab) -> set[str]:
    store = lab.namespace.outside(lab.store_dir)
    return {each.name for each in store.iterdir() if len(each.name) == len(sha256(b""))}


def mounted(container: Container) -> str:
    """The SHA-256 by whose name the store has the library that the container mounts."""
    lines = container.exec(["cat", "/proc/self/mountinfo"]).out.splitlines()
    (root,) = [line.split()[3] for line in lines if line.split()[4] == names.CONTAINER_LIBRARY]
    return Path(root).parent.name


def held(container: Container) -> str:
    """Mappings of the library in the program that `hold_all` started; fails if it has ended."""
    script = f"kill -0 $(cat /tmp/pid) && grep {names.FILE_LIBRARY} /proc/$(cat /tmp/pid)/maps"
    done = container.exec(["sh", "-c", script])
    assert done.code == 0, done
    return done.out


def test_the_next_container_mounts_the_newer_library(upgradable: Lab) -> None:
    """Running containers keep theirs, and a release goes with its last container. An agent that is
    killed and started again finds the store as it was."""
    lab = upgradable
    own = lab.library.read_bytes()
    newer, newest = own + b"newer", own + b"newest"
    share = {"main": [(0, SHARE, 10)]}
    with lab.pod("first", lab.share(share)) as pod:
        first = pod.run("main", OWN)
        hold_all(first)
        maps = held(first)
        upgrade(lab, newer)
        with lab.pod("second", lab.share(share)) as pod:
            second = pod.run("main", OWN)
            assert (mounted(first), mounted(second)) == (sha256(own), sha256(newer))
            assert probe(second).held_to(SHARE)
            hold_all(second)
            maps_second = held(second)
            metric = f'gpuslice_library{{sha256="{sha256(newer)}"}}'
            lab.wait_until(lambda: sample(lab, metric) == 1, "the metric")
            upgrade(lab, newest, signal.SIGKILL)
            with lab.pod("third", lab.share(share)) as pod:
                third = pod.run("main", OWN)
                assert mounted(third) == sha256(newest)
                assert probe(third).held_to(SHARE)
                assert (held(first), held(second)) == (maps, maps_second)
                assert releases(lab) >= {sha256(own), sha256(newer), sha256(newest)}
        lab.wait_until(lambda: sha256(newer) not in releases(lab), "the release to be removed")
        assert releases(lab) == {sha256(own), sha256(newest)}
        assert held(first) == maps
