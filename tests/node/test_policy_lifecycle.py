"""The policy's rows on GPUs that a node lacks, and on the lifecycle of containers."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process, Sandbox
from lab.node.lab import Lab

from .conftest import GIB, hold_all, probe
from .rows import HALF, OWN, one, refused

pytestmark = pytest.mark.node

ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED


def _fault(lab: Lab, *words: str) -> None:
    lab._python("simgpu", "fault", "--dir", lab.sim_dir, "--gpu", "0", *words)


def test_a_gpu_that_is_gone(lab: Lab) -> None:
    def created() -> bool:
        with lab.pod("again", one(lab)) as pod:
            try:
                pod.create("main", OWN)
            except CriError:
                return False
        return True

    _fault(lab, "lose")
    try:
        lab.wait_until(lambda: not created(), "the agent to miss the GPU")
        with lab.pod("gone", one(lab)) as pod, refused("a_gpu_that_is_gone"):
            pod.create("main", OWN)
    finally:
        _fault(lab, "restore")
        lab.wait_until(created, "the agent to find the GPU again")


def _allocated(gpu: str, memory_bytes: int) -> dict[str, str]:
    resources = f'{{"{names.RESOURCE_MEMORY}":"{memory_bytes}"}}'
    return {ALLOCATED: f'{{"gpu":[{{"minor":0,"id":"{gpu}","resources":{resources}}}]}}'}


def test_an_unknown_gpu(lab: Lab) -> None:
    with lab.pod("unknown", _allocated("GPU-absent", GIB)) as pod, refused("an_unknown_gpu"):
        pod.create("main", OWN)


def test_more_than_the_gpu(lab: Lab) -> None:
    written = _allocated(lab.gpus[0].uuid, 43020000000)
    with lab.pod("greedy", written) as pod, refused("more_than_the_gpu"):
        pod.create("main", OWN)


def test_a_pod_resized_in_place(lab: Lab) -> None:
    with lab.pod("resized", one(lab)) as pod:
        container = pod.run("main", OWN)
        for size in (256 << 20, 512 << 20):
            container.resize(size)
            assert probe(container).held_to(HALF)


def test_a_container_restored_from_a_checkpoint(lab: Lab) -> None:
    with lab.pod("saved", one(lab)) as saved:
        files = lab.run_dir / saved.run("main", OWN).id
        volumes = {names.CONTAINER_DIR: files}
        with (
            lab.pod("restored", one(lab)) as pod,
            refused("a_container_restored_from_a_checkpoint"),
        ):
            pod.create("main", Process(PYTHON_IMAGE, mounts=volumes))


def test_a_pod_restarted_in_place(lab: Lab) -> None:
    for written in (one(lab), lab.allocated([(0, HALF, 50)])):
        same = Sandbox(uid=f"restarted-{len(written)}")
        for _ in range(2):
            with lab.pod("restarted", written, of=same) as pod:
                container = pod.run("main", OWN)
                hold_all(container)
                assert probe(container).found_it_full()


def _agent(lab: Lab) -> psutil.Process:
    assert lab._agent is not None
    (agent,) = psutil.Process(lab._agent.entering.pid).children()
    return agent


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
        return directories, mounts, _open_files(_agent(lab).pid)

    with lab.pod("crashing", one(lab)) as pod:
        container = pod.run("main", OWN)
        before = left()
        assert before[0] == {container.id} and before[1] == 1
        for _ in range(100):
            container.stop()
            container.remove()
            container = pod.run("main", OWN)
        after = left()
        assert probe(container).held_to(HALF)
    assert after == ({container.id}, *before[1:])
