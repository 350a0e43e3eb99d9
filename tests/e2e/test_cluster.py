"""`make cluster`: what its user has of it, and what is left when anything of it is killed.

In the order of the file: the last tests end the cluster that the first ones use.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from simgpu.lab import holder, network
from simgpu.lab.place import MARK
from tests.cluster.waiting import until
from tests.e2e.conftest import Whole, half_of_card

pytestmark = pytest.mark.e2e

_SMI = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"


def test_a_pod_from_kubectl_runs_with_logs_and_exec(whole: Whole) -> None:
    whole.run_pod("plain")
    assert whole.kubectl("logs", "plain") == "hello from plain\n"
    assert whole.inside("plain", "id -u") == "0\n"
    assert whole.inside("plain", "ls /dev/simgpu /.gpuslice 2>&1 | wc -l") == "2\n"
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert whole.kubectl("get", "node", "gpuslice", "-o", ready) == "True"


def test_a_pod_with_a_grant_has_its_half_of_the_card(whole: Whole) -> None:
    whole.run_pod("half", half_of_card(1))
    assert whole.inside("half", _SMI) == "11520\n"
    uuid = whole.inside("half", "nvidia-smi --query-gpu=uuid --format=csv,noheader").strip()
    assert uuid in half_of_card(1)["gpuslice.io/grants"]


def test_a_second_up_finds_it_and_other_cards_are_refused(whole: Whole) -> None:
    owner = whole.owner
    assert "already" in whole.up()
    assert whole.owner == owner
    other = whole.command("up", "--cards", "1x40Gi")
    assert other.returncode == 1
    assert "with other cards (cards: 2 of 23040 MiB)" in other.stderr


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
        *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        *("containerd", "kubelet", "node agent"),
    ],
)
def test_a_part_that_is_killed_is_started_again(whole: Whole, part: str) -> None:
    before = whole.pid(part)
    whole.kill(before)
    until(lambda: whole.state["parts"][part]["pid"] not in (before, None), f"{part} is back")
    until(whole.well, "the cluster is well")


def test_after_all_that_pods_run_and_limits_hold(whole: Whole) -> None:
    assert whole.inside("half", _SMI) == "11520\n"
    whole.run_pod("other-half", half_of_card(1))
    assert whole.inside("other-half", _SMI) == "11520\n"
    restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}"
    assert whole.kubectl("get", "pods", "-o", restarts) == "0 0 0"


def test_a_cluster_whose_owner_was_killed_is_told_apart_and_made_anew(whole: Whole) -> None:
    whole.kill(whole.owner)
    until(lambda: whole.command("status").returncode == 1, "the owner is gone")
    said = whole.up()
    assert "is broken: the process that holds it has ended" in said
    assert whole.well()
    whole.run_pod("anew", half_of_card(0))


def test_down_leaves_nothing_also_after_kills(whole: Whole) -> None:
    state, directory = whole.state, Path(whole.state["directory"])
    whole.kill(_holder(directory))
    whole.kill(whole.owner)
    done = whole.command("down")
    assert done.returncode == 0, done.stderr
    assert not whole.directory.exists()
    assert not network.is_there(state["interface"])
    assert holder.cgroups(directory.name) == []
    assert _marked(whole.directory) == []
    assert whole.command("status").returncode == 3
    assert "no cluster" in whole.command("down").stderr


def _holder(directory: Path) -> int:
    """The first process of the cluster's namespaces."""
    for pid in _marked(directory.parent):
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "simgpu.lab.holder" in command and "unshare" not in command[0]:
            return pid
    raise AssertionError("no holder")


def _marked(directory: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if f"{MARK}={directory}".encode() in environ.split(b"\0"):
            found.append(int(entry.name))
    return found
