"""The policy's rows on the lifecycle of containers."""

from __future__ import annotations

import os
import time

import pytest

from lab.node.cri import Sandbox
from lab.node.lab import Lab

from .scene import HALF, OWN, granted, hold_all, one, probe

pytestmark = pytest.mark.node


def test_a_pod_changed_in_place(lab: Lab) -> None:
    with granted(lab) as container:
        container.resize(256 << 20)
        assert probe(container).held_to(HALF)
    for written in (one(lab), lab.allocated([(0, HALF, 50)])):
        same = Sandbox(uid=f"restarted-{len(written)}")
        for _ in range(2):
            with lab.pod("restarted", written, of=same) as pod:
                container = pod.run("main", OWN)
                hold_all(container)
                assert probe(container).found_it_full()


def _open_files(pid: int) -> int:
    """Except pipes, and those of children, which come and go; and except a grant's files while a
    measurement reads them: the least of several counts."""
    counts = []
    for _ in range(5):
        files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        counts.append(sum(not name.startswith("pipe:") for name in files))
        time.sleep(0.1)
    return min(counts)


def test_a_container_restarted_100_times(lab: Lab) -> None:
    def left() -> tuple[set[str], int, int]:
        directories = set(lab.namespace.run(["ls", lab.run_dir]).stdout.split())
        mounts = lab.namespace.run(["cat", "/proc/mounts"]).stdout.count(str(lab.run_dir))
        return directories, mounts, _open_files(lab.agent_pid)

    with lab.pod("crashing", one(lab)) as pod:
        container = pod.run("main", OWN)
        before = left()
        assert before[0] == {container.id} and before[1] == 2, "the container's, the store's"
        for _ in range(100):
            container.stop()
            container.remove()
            container = pod.run("main", OWN)
        after = left()
        assert probe(container).held_to(HALF)
    assert after == ({container.id}, *before[1:])
