"""An agent of another release: new containers mount its library, running ones keep theirs."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.cri import Container
from lab.node.lab import Lab

from ..scene import QUARTER, granted, hold_all, probe, sample

pytestmark = pytest.mark.node


@pytest.fixture
def upgradable(lab: Lab) -> Iterator[Lab]:
    """Yield the lab. Afterwards restart the agent with the lab's own library."""
    library = lab.library
    yield lab
    lab.library = library
    lab.stop_agent()
    lab.start_agent()


def upgrade(lab: Lab, data: bytes, number: int = signal.SIGTERM) -> str:
    """Replace the agent by one whose release has this library. Return the library's SHA-256."""
    sha256 = hashlib.sha256(data).hexdigest()
    lab.library = lab.directory / f"release-{sha256[:8]}" / names.FILE_LIBRARY
    lab.library.parent.mkdir(exist_ok=True)
    lab.library.write_bytes(data)
    lab.stop_agent(number)
    lab.start_agent()
    return sha256


def releases(lab: Lab) -> set[str]:
    store = lab.namespace.outside(lab.store_dir)
    return {each.name for each in store.iterdir() if len(each.name) == 64}


def mounted(container: Container) -> str:
    """Return the SHA-256 of the library that the container mounts: its directory in the store."""
    lines = container.exec(["cat", "/proc/self/mountinfo"]).out.splitlines()
    (root,) = [line.split()[3] for line in lines if line.split()[4] == names.CONTAINER_LIBRARY]
    return Path(root).parent.name


def held(container: Container) -> str:
    """Return the lines of the library in /proc/PID/maps of the process that `hold_all` started.
    Fail if that process has ended."""
    script = f"kill -0 $(cat /tmp/pid) && grep {names.FILE_LIBRARY} /proc/$(cat /tmp/pid)/maps"
    done = container.exec(["sh", "-c", script])
    assert done.code == 0, done
    return done.out


def test_the_next_container_mounts_the_newer_library(upgradable: Lab) -> None:
    """Running containers keep their library, and a release is removed after its last container. An
    agent that is killed and started again finds the store unchanged."""
    lab = upgradable
    data = lab.library.read_bytes()
    own = hashlib.sha256(data).hexdigest()
    with granted(lab, size=QUARTER, core=10, name="first") as first:
        hold_all(first)
        maps = held(first)
        newer = upgrade(lab, data + b"newer", signal.SIGKILL)
        with granted(lab, size=QUARTER, core=10, name="second") as second:
            assert (mounted(first), mounted(second)) == (own, newer)
            assert probe(second).held_to(QUARTER)
            metric = f'gpuslice_library{{sha256="{newer}"}}'
            lab.wait_until(lambda: sample(lab, metric) == 1, "the metric")
            newest = upgrade(lab, data + b"newest")
            assert probe(second).held_to(QUARTER)
            assert releases(lab) == {own, newer, newest}
        lab.wait_until(lambda: newer not in releases(lab), "the release to be removed")
        assert releases(lab) == {own, newest}
        assert held(first) == maps
