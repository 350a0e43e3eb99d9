"""The distributor beside a running agent: which library the next container mounts, and what the
running ones keep."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract import names
from contract.library_file import CONTRACT
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, Process
from lab.node.lab import Lab

from ..conftest import GIB, hold_all, probe
from ..test_operations import sample

pytestmark = pytest.mark.node

OWN = Process(PYTHON_IMAGE)
SHARE = 10 * GIB


@pytest.fixture
def clean(lab: Lab) -> Iterator[Lab]:
    """Afterwards new containers mount the agent's own library again."""
    yield lab
    (lab.store_dir / names.FILE_CURRENT).unlink(missing_ok=True)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def current(lab: Lab) -> str:
    path = lab.store_dir / names.FILE_CURRENT
    return path.read_text().strip() if path.exists() else ""


@contextmanager
def distributed(lab: Lab, data: bytes) -> Iterator[None]:
    """A distributor of that library runs on the node, and has published it."""
    payload, log = lab.directory / f"payload-{sha256(data)[:8]}", lab.directory / "distributor.log"
    payload.write_bytes(data)
    command: list[str | Path] = [sys.executable, "-m", "nri_plugin", "distribute"]
    command += ["--library", payload, "--store-dir", lab.store_dir]
    with log.open("a") as out:
        running = lab.namespace.start(command, out, out)
    try:
        lab.wait_until(lambda: current(lab) == sha256(data), "the library to be published")
        yield
    finally:
        running.kill(signal.SIGTERM)


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


def test_the_next_container_mounts_the_newer_library(clean: Lab) -> None:
    """The agent is not restarted, running containers keep theirs, and a release goes with its last
    container. A foreign `cp -f` over the copy disturbs no program."""
    lab, agent_pid, copy = clean, clean.agent_pid, clean.store_dir.parent / names.FILE_LIBRARY
    own = lab.library.read_bytes()
    newer, newest = own + b"newer", own + b"newest"
    share = {"main": [(0, SHARE, 10)]}
    with lab.pod("first", lab.share(share)) as pod:
        first = pod.run("main", OWN)
        hold_all(first)
        maps = held(first)
        with distributed(lab, newer):
            with lab.pod("second", lab.share(share)) as pod:
                second = pod.run("main", OWN)
                assert (mounted(first), mounted(second)) == (sha256(own), sha256(newer))
                assert probe(second).held_to(SHARE)
                hold_all(second)
                maps_second = held(second)
                foreign = lab.directory / "foreign"
                foreign.write_bytes(b"\x7fELF of another project")
                assert lab.namespace.run(["cp", "-f", foreign, copy]).returncode == 0
                lab.wait_until(lambda: copy.read_bytes() == newer, "the copy to be restored")
                assert (held(first), held(second)) == (maps, maps_second)
                metric = f'gpuslice_library{{sha256="{sha256(newer)}",source="distributor"}}'
                lab.wait_until(lambda: sample(lab, metric) == 1, "the metric")
                with distributed(lab, newest), lab.pod("third", lab.share(share)) as pod:
                    third = pod.run("main", OWN)
                    assert mounted(third) == sha256(newest)
                    assert probe(third).held_to(SHARE)
                    assert (held(first), held(second)) == (maps, maps_second)
                    assert (lab.store_dir / sha256(newer)).exists()
            lab.wait_until(
                lambda: not (lab.store_dir / sha256(newer)).exists(), "the release to be removed"
            )
        assert (lab.store_dir / sha256(own)).exists()
        assert (lab.store_dir / sha256(newest)).exists()
        assert held(first) == maps
    assert lab.agent_pid == agent_pid


def test_a_library_of_another_contract_is_not_mounted(clean: Lab) -> None:
    lab, own = clean, clean.library.read_bytes()
    other = own.replace(CONTRACT.encode(), CONTRACT.replace("grant 1", "grant 9").encode())
    with distributed(lab, other), lab.pod("main", lab.share({"main": [(0, SHARE, 10)]})) as pod:
        container = pod.run("main", OWN)
        assert mounted(container) == sha256(own)
        assert probe(container).held_to(SHARE)
    lines = [line for line in lab.agent_log.read_text().splitlines() if "grant 9" in line]
    assert "level=warning" in lines[-1] and "source=agent" in lines[-1]
