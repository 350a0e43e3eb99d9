"""`make cluster`: what a user can do with it, and what is left when any part of it is killed.

The tests run in the order of the file, because the last ones end the cluster of the first ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.node import cgroups, network
from tests.e2e.whole import HALF, WHOLE_GPU, Whole
from tests.support import run, until

pytestmark = pytest.mark.e2e


def test_a_pod_from_kubectl_runs_with_logs_and_exec(whole: Whole) -> None:
    whole.run_pod("plain")
    assert whole.kubectl("logs", "plain") == "hello from plain\n"
    assert whole.inside("plain", "id -u") == "0\n"
    assert whole.inside("plain", "ls /dev/simgpu /.gpuslice 2>&1 | wc -l") == "2\n"
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert whole.kubectl("get", "node", "gpuslice", "-o", ready) == "True"
    whole.run_pod("full", WHOLE_GPU)
    whole.run_pod("half", HALF)


def test_top_shows_what_a_pod_uses(whole: Whole) -> None:
    """The kubelet forwards to the agent's port, on 127.0.0.1 of the node."""
    whole.inside("half", "cuda-probe hold >/tmp/held 2>&1 & until [ -s /tmp/held ]; do :; done")
    program = "import sys; from gpuslice.cli.main import main; sys.exit(main(sys.argv[1:]))"
    options = ("--once", "--output=json", f"--kubeconfig={whole.directory}/kubeconfig")

    def used() -> bool:
        done = run(sys.executable, "-c", program, "top", *options, timeout=60)
        assert done.returncode == 0, done.stderr
        (node,) = json.loads(done.stdout)["nodes"]
        found = {each["pod"]: each["use"] for gpu in node["gpus"] for each in gpu["slices"]}
        use = found["half"] or {}
        return use.get("used_bytes") == use.get("limit_bytes") == 11520 << 20

    until(used, "top shows that the pod uses its limit")
    whole.inside("half", "kill -9 $(busybox pidof cuda-probe)")


def test_a_second_up_finds_it_and_other_gpus_are_refused(whole: Whole) -> None:
    owner = whole.owner
    assert "already" in whole.up()
    assert whole.owner == owner
    for options, text in (
        (("--gpus", "1x40Gi"), "GPUs (GPUs: 2 of 23040 MiB)"),
        (("--serve", "another"), "schedulerNames served beside gpuslice's own (koord-scheduler)"),
    ):
        other = whole.command("up", *options)
        assert other.returncode == 1
        assert f"with other {text}" in other.stderr
        assert f"make cluster-down AT={whole.directory} ends it" in other.stderr
    assert whole.command("up").returncode == 0, "nothing else is asked"


def test_the_machine_keeps_its_own(whole: Whole) -> None:
    """The cluster does not change the machine's kernel settings, directories and interfaces."""
    listed = subprocess.check_output(["ip", "-br", "link"], text=True).splitlines()
    assert sum(line.startswith(whole.state["interface"]) for line in listed) == 1
    assert not any(line.startswith("pods") for line in listed)
    assert str(whole.directory) not in Path("/proc/self/mounts").read_text()
    inside = Path(f"/proc/{whole.pid('kubelet')}/root")
    for place in ("var", "run", "proc/sys/kernel/panic_on_oops"):
        assert (inside / place).stat().st_dev != Path("/", place).stat().st_dev


@pytest.mark.parametrize(
    "part", ["kube-apiserver", "gpuslice extender", "gpuslice node agent", "containerd", "kubelet"]
)
def test_a_component_that_is_killed_is_started_again(whole: Whole, part: str) -> None:
    whole.restart(part)


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
    # A kubelet that has just started does not know the node's pods yet.
    until(lambda: whole.answers("full"), "kubelet knows its pods")
    for name, memory in (("full", "23040"), ("half", "11520")):
        assert whole.gpu(name, "memory.total") == memory
    restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}"
    assert set(whole.kubectl("get", "pods", "-o", restarts).split()) == {"0"}
    whole.kubectl("delete", "pod", "full")
    whole.run_pod("later", HALF)
    assert whole.gpu("later", "memory.total") == "11520"


def test_a_cluster_whose_owner_was_killed_is_detected_and_restarted(whole: Whole) -> None:
    whole.kill(whole.owner)
    until(lambda: whole.command("status").returncode == 1, "the owner is gone")
    had = {each: whole.state[each] for each in ("gpus", "served")}
    done = whole.command("up")
    assert done.returncode == 0, done.stderr
    assert {each: whole.state[each] for each in had} == had, "as it was, though not asked for"
    assert "is broken: the process that holds it has ended" in done.stderr
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
