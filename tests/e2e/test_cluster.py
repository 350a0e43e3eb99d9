"""`make cluster`: its function for a user, and what is left when any part of it is killed.

In the order of the file: the last tests end the cluster that the first ones use.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab.demo import seed
from lab.node import cgroups, network
from tests.e2e.whole import HALF, WHOLE_GPU, Whole
from tests.support import until

pytestmark = pytest.mark.e2e

_QUERY = "nvidia-smi --format=csv,noheader,nounits --query-gpu"


def test_a_pod_from_kubectl_runs_with_logs_and_exec(whole: Whole) -> None:
    whole.run_pod("plain")
    assert whole.kubectl("logs", "plain") == "hello from plain\n"
    assert whole.inside("plain", "id -u") == "0\n"
    assert whole.inside("plain", "ls /dev/simgpu /.gpuslice 2>&1 | wc -l") == "2\n"
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert whole.kubectl("get", "node", "gpuslice", "-o", ready) == "True"


def test_the_documents_pod_gets_the_documented_share(whole: Whole) -> None:
    """Applied unchanged, on two GPUs of which the first is full."""
    whole.run_pod("full", WHOLE_GPU)
    assert whole.allocated("full").startswith('{"gpu":[{"minor":0,')
    whole.kubectl("apply", "-f", str(seed.PATH))
    whole.ready("pod-example")
    gpu = whole.inside("pod-example", f"{_QUERY}=uuid").strip()
    assert whole.allocated("pod-example") == seed.shown(gpu)
    assert whole.inside("pod-example", f"{_QUERY}=memory.total") == "11520\n"


def test_a_pod_that_does_not_fit_waits_until_another_is_deleted(whole: Whole) -> None:
    whole.run_pod("other-half", HALF)
    assert '"minor":1,' in whole.allocated("other-half")
    whole.make_pod("late", HALF)
    until(lambda: "FailedScheduling" in whole.events("late"), "it is said why it waits")
    assert whole.kubectl("get", "pod", "late", "-o=jsonpath={.spec.nodeName}") == ""
    whole.kubectl("delete", "pod", "other-half")
    whole.ready("late")
    assert whole.inside("late", f"{_QUERY}=memory.total") == "11520\n"


def test_a_second_up_finds_it_and_other_gpus_are_refused(whole: Whole) -> None:
    owner = whole.owner
    assert "already" in whole.up()
    assert whole.owner == owner
    other = whole.command("up", "--gpus", "1x40Gi")
    assert other.returncode == 1
    assert "with other GPUs (GPUs: 2 of 23040 MiB)" in other.stderr
    assert f"make cluster-down AT={whole.directory} ends it" in other.stderr
    other = whole.command("up", "--serve", "another")
    assert other.returncode == 1
    assert (
        "with other schedulerNames served beside gpuslice's own (koord-scheduler)" in other.stderr
    )
    assert whole.command("up").returncode == 0, "nothing else is asked"


def test_the_machine_keeps_its_own(whole: Whole) -> None:
    """Kubelet's kernel settings, its directories and the node's interfaces are the cluster's."""
    listed = subprocess.run(["ip", "-br", "link"], text=True, capture_output=True).stdout
    ours = [line for line in listed.splitlines() if line.startswith(whole.state["interface"])]
    assert len(ours) == 1
    assert not any(line.startswith("pods") for line in listed.splitlines())
    assert str(whole.directory) not in Path("/proc/self/mounts").read_text()
    kubelet = whole.pid("kubelet")
    for place in ("/var", "/run"):
        assert os.stat(f"/proc/{kubelet}/root{place}").st_dev != os.stat(place).st_dev
    panic = "proc/sys/kernel/panic_on_oops"
    assert Path(f"/proc/{kubelet}/root", panic).stat().st_dev != Path("/", panic).stat().st_dev


@pytest.mark.parametrize(
    "part",
    [
        *("kube-apiserver", "gpuslice extender", "gpuslice node agent"),
        *("containerd", "kubelet"),
    ],
)
def test_a_component_that_is_killed_is_started_again(whole: Whole, part: str) -> None:
    before = whole.pid(part)
    whole.kill(before)
    until(lambda: whole.state["parts"][part]["pid"] not in (before, None), f"{part} is back")
    until(whole.well, "the cluster is well")


@pytest.mark.parametrize("part", ["gpuslice extender", "gpuslice node agent"])
def test_a_component_that_hangs_is_reported(whole: Whole, part: str) -> None:
    os.kill(whole.pid(part), signal.SIGSTOP)
    try:
        said = whole.command("status")
        assert said.returncode == 1
        assert f"broken: {part} is not ready: timed out" in said.stderr
    finally:
        os.kill(whole.pid(part), signal.SIGCONT)
    until(whole.well, "the cluster is well")


def test_after_kills_and_hangs_pods_run_and_limits_hold(whole: Whole) -> None:
    # A kubelet that has just started has not loaded its pods yet.
    known = ("exec", "full", "--", "true")
    until(lambda: whole.try_kubectl(*known).returncode == 0, "kubelet knows its pods")
    for name, memory in (("full", "23040\n"), ("pod-example", "11520\n"), ("late", "11520\n")):
        assert whole.inside(name, f"{_QUERY}=memory.total") == memory
    restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}"
    assert set(whole.kubectl("get", "pods", "-o", restarts).split()) == {"0"}
    whole.kubectl("delete", "pod", "full", "late")
    whole.run_pod("later", HALF)
    assert whole.inside("later", f"{_QUERY}=memory.total") == "11520\n"


def test_a_cluster_whose_owner_was_killed_is_detected_and_restarted(whole: Whole) -> None:
    whole.kill(whole.owner)
    until(lambda: whole.command("status").returncode == 1, "the owner is gone")
    had = {each: whole.state[each] for each in ("gpus", "served")}
    done = whole.command("up")
    said = done.stderr
    assert done.returncode == 0, said
    assert {each: whole.state[each] for each in had} == had, "as it was, though not asked for"
    assert "is broken: the process that holds it has ended" in said
    assert whole.well()
    whole.run_pod("again", HALF)


def test_down_leaves_nothing_also_after_kills(whole: Whole) -> None:
    state, directory = whole.state, Path(whole.state["directory"])
    whole.kill(whole.first())
    whole.kill(whole.owner)
    done = whole.command("down")
    assert done.returncode == 0, done.stderr
    assert not whole.directory.exists()
    assert not network.is_there(state["interface"])
    assert cgroups.named(directory.name) == []
    assert whole.marked() == []
    assert whole.command("status").returncode == 3
    assert "no cluster" in whole.command("down").stderr
