"""Faults of a node, and that no container runs without its limit because of one."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from bench.faults import bystanders
from gpuslice.contract import names
from lab.node.catalogue import (
    LINKED_VOLUME,
    LINKED_VOLUME_IMAGE,
    OWN_PRELOAD,
    PRELOAD_IMAGE,
    PYTHON_IMAGE,
)
from lab.node.cri import Container, CriError, Process
from lab.node.lab import Lab

from .conftest import GIB, PROBE, probe, said

pytestmark = pytest.mark.node

HALF = 20 * GIB
OWN = Process(PYTHON_IMAGE)
LABELS = {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER}

ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED
UUID = "GPU-5e1f0a70-0000-4000-8000-000000000000"

MALFORMED = (
    f'{{"gpu":[{{"minor":0,"id":"{UUID}","resources":'
    f'{{"{names.RESOURCE_MEMORY}":"12 potatoes"}}}}]}}'
)


def test_a_malformed_annotation_is_refused_with_its_reason(lab: Lab) -> None:
    refused = pytest.raises(CriError, match=r"gpuslice refuses .*12 potatoes")
    with lab.pod("malformed", {ALLOCATED: MALFORMED}, LABELS) as pod, refused:
        pod.create("main", OWN)


@pytest.mark.parametrize("title", ["killed between requests", bystanders.OWN_EXIT, "hangs"])
def test_the_agents_end_fails_at_most_the_next_container_without_a_share(
    bare_lab: Lab, title: str
) -> None:
    """docs/failures.md has the counts on each containerd."""
    bare_lab.stop_agent(signal.SIGKILL)
    harm = bystanders.measure(bare_lab, 1, [title])[title]
    assert harm.created > 1 and harm.later == 0
    assert harm.failed <= bystanders.most(bare_lab.release, title), harm.texts


def test_a_labelled_pod_without_an_allocation_has_no_gpu(lab: Lab) -> None:
    with lab.pod("labelled", {}, LABELS) as pod:
        assert not probe(pod.run("main", OWN)).driver


def test_an_unreadable_allocation_of_a_pod_that_requests_no_share(lab: Lab) -> None:
    with lab.pod("unreadable", {ALLOCATED: "{"}) as pod:
        assert not probe(pod.run("main", OWN)).driver


def test_a_container_without_a_share_starts_beside_a_gpu_that_failed(lab: Lab) -> None:
    written = lab.share({"main": [(0, HALF, 50)]})
    failed = {key: text.replace(lab.gpus[0].uuid, "GPU-failed") for key, text in written.items()}
    with lab.pod("broken", failed) as pod:
        with pytest.raises(CriError, match="invalid value GPU-failed: must be a GPU of this node"):
            pod.create("main", OWN)
        for name in ("istio-proxy", "debugger-x7k2p"):
            assert not probe(pod.run(name, OWN)).driver


def test_the_same_image_without_a_gpu_is_left_alone(lab: Lab) -> None:
    with lab.pod("own") as pod:
        container = pod.run("main", Process(PRELOAD_IMAGE))
        assert container.exec(["cat", names.CONTAINER_PRELOAD]).out.startswith(OWN_PRELOAD)


def test_without_the_agent_a_pod_that_requires_it_is_refused(bare_lab: Lab) -> None:
    bare_lab.stop_agent()
    absent = pytest.raises(CriError, match='required plugin "gpuslice" not present')
    with bare_lab.pod("required", bare_lab.share({"main": [(0, HALF, 50)]})) as pod, absent:
        pod.create("main", OWN)


def test_without_the_agent_there_is_no_gpu(bare_lab: Lab) -> None:
    """Nothing requires the agent in a pod of Koordinator's: it runs, and has no GPU."""
    bare_lab.stop_agent()
    with bare_lab.pod("koordinator", bare_lab.allocated([(0, HALF, 50)])) as pod:
        container = pod.run("main", OWN)
        assert not probe(container).driver
        assert container.exec(["ls", "/dev/simgpu"]).code != 0


def test_an_agent_killed_with_9_leaves_limits_in_force(half: Container, lab: Lab) -> None:
    lab.stop_agent(signal.SIGKILL)
    assert probe(half).held_to(HALF)
    absent = pytest.raises(CriError, match="required plugin")
    with lab.pod("late", lab.share({"main": [(0, HALF, 50)]})) as pod, absent:
        pod.create("main", OWN)
    lab.start_agent()
    assert probe(half).held_to(HALF)
    with lab.pod("later", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)


@pytest.mark.parametrize("after_ms", [0, 5, 10, 15, 20, 30])
def test_an_agent_killed_while_a_container_is_made_gives_no_gpu_away(
    lab: Lab, after_ms: int
) -> None:
    """The container is refused or limited, whatever the step. It has no GPU if nothing requires the
    agent."""
    for written in (lab.share({"main": [(0, HALF, 50)]}), lab.allocated([(0, HALF, 50)])):
        if not lab.agent_running:
            lab.start_agent()
        killing = threading.Timer(after_ms / 1000, lab.stop_agent, [signal.SIGKILL])
        with lab.pod("torn", written) as pod:
            killing.start()
            try:
                taken = probe(pod.run("main", OWN))
            except CriError:
                continue
            finally:
                killing.join()
            assert taken.held_to(HALF) or not taken.driver


def test_a_container_that_starts_while_the_agent_is_away_has_its_limit(lab: Lab) -> None:
    """Its limit came with the adjustment; only the check of the image is missed, as its preload
    shows."""
    with lab.pod("made", lab.share({"main": [(0, HALF, 50)]})) as pod:
        container = pod.create("main", Process(PRELOAD_IMAGE))
        lab.stop_agent()
        container.start()
        assert probe(container).held_to(HALF)
        assert OWN_PRELOAD not in container.exec(["cat", names.CONTAINER_PRELOAD]).out
        lab.start_agent()
        lab.wait_until(lambda: said(lab, "limit in place", container), "the proof")


def test_a_limit_that_was_hidden_while_the_agent_was_away_is_named(
    lab: Lab, half: Container, tmp_path: Path
) -> None:
    """No agent checked it before it started: it runs with its own forged grant, and is reported."""
    (tmp_path / "grant").write_bytes(b"")
    volume = {LINKED_VOLUME: tmp_path / "grant"}
    quarter = lab.share({"main": [(0, HALF // 2, 25)]})
    with lab.pod("hidden", quarter) as hidden, lab.pod("strong", quarter) as strong:
        containers = [
            hidden.create("main", Process(LINKED_VOLUME_IMAGE, mounts=volume)),
            strong.create("main", Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"])),
        ]
        lab.stop_agent()
        for container in containers:
            container.start()
        lab.start_agent()
        for container in containers:
            named = partial(said, lab, "limit not in place", container)
            lab.wait_until(named, "it to be named")
        lab.wait_until(lambda: said(lab, "limit in place", half), "the other's proof")
        assert not said(lab, "limit not in place", half)


def test_an_agent_that_hangs_lets_no_container_through(lab: Lab) -> None:
    """containerd drops a plugin that does not answer in time, and would continue without it."""
    ready = lab.times_ready()
    lab.signal_agent(signal.SIGSTOP)
    try:
        failed = pytest.raises(CriError, match=r"validator plugin .*gpuslice failed")
        with lab.pod("late", lab.share({"main": [(0, HALF, 50)]})) as pod, failed:
            pod.create("main", OWN)
    finally:
        lab.signal_agent(signal.SIGCONT)
    lab.wait_until(lambda: lab.times_ready() > ready, "the agent to register again")
    with lab.pod("later", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)


def test_the_agent_comes_back_after_containerd_restarts(half: Container, lab: Lab) -> None:
    ready = lab.times_ready()
    lab.containerd.stop()
    lab.containerd.start()
    lab.wait_until(lambda: lab.times_ready() > ready, "the agent to register again")
    lab.cri.version()
    assert probe(half).held_to(HALF)
    with lab.pod("new", lab.share({"main": [(0, HALF, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)


def test_a_region_truncated_from_inside_stops_new_programs(half: Container) -> None:
    """The tenant may harm itself, but gains nothing: cuInit fails with one line."""
    region = f"{names.CONTAINER_DIR}/{names.FILE_REGION}"
    assert half.exec(["truncate", "-s", "0", region]).code == 0
    done = half.exec([PROBE])
    assert '"init": 800' in done.out
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("gpuslice: ") and region in lines[0]
    assert "is truncated, damaged, or of another grant" in lines[0]
    assert half.exec(["ls", "/"]).err == ""


def test_a_region_that_cannot_be_written_stops_new_programs(half: Container, lab: Lab) -> None:
    """The arbiter, which keeps the lease open for writing, exits with the agent."""
    host = lab.run_dir / half.id
    lab.stop_agent()
    assert lab.namespace.run(["mount", "-o", "remount,ro", host]).returncode == 0
    done = half.exec([PROBE])
    assert '"init": 800' in done.out
    assert "cannot be written" in done.err and len(done.err.splitlines()) == 1
    assert half.exec(["ls", "/"]).err == ""
    assert lab.namespace.run(["mount", "-o", "remount,rw", host]).returncode == 0
    assert probe(half).held_to(HALF)
    lab.start_agent()


def test_a_missing_library_refuses_pods_with_a_grant(lab: Lab, tmp_path: Path) -> None:
    lab.stop_agent()
    whole, lab.library = lab.library, tmp_path / "absent.so"
    try:
        lab.start_agent()
        refused = pytest.raises(
            CriError, match=r"the library is missing on this node: .*absent\.so"
        )
        with lab.pod("starved", lab.share({"main": [(0, HALF, 50)]})) as pod, refused:
            pod.create("main", OWN)
        with lab.pod("plain") as pod:
            assert pod.run("main", OWN).exec(["true"]).code == 0
    finally:
        lab.stop_agent()
        lab.library = whole


def test_nothing_is_left_of_a_pod(lab: Lab) -> None:
    with lab.pod("gone", lab.share({"main": [(0, HALF, 50)]})) as pod:
        container = pod.run("main", OWN)
        held = lab.namespace.run(["ls", lab.run_dir / container.id]).stdout.split()
        assert set(held) >= {names.FILE_GRANT, names.FILE_REGION}
    lab.wait_until(
        lambda: lab.namespace.run(["ls", lab.run_dir]).stdout == "", "the run directory to empty"
    )
    mounted = lab.namespace.run(["cat", "/proc/mounts"]).stdout.splitlines()
    assert [line for line in mounted if f" {lab.run_dir}/" in line] == [
        line for line in mounted if f" {lab.store_dir} " in line
    ]
