"""Limits of compute on a real containerd: a container's lease, and the arbiter that writes it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names
from lab.node.lab import Lab
from lab.node.namespace import children
from simgpu import load_output
from tests.support import measured

from .scene import LOAD, agent_with, get, granted, said, sample

pytestmark = pytest.mark.node

SERIES = "gpuslice_container_gpu_"


def arbiter(lab: Lab) -> int:
    """Return the process ID of the running agent's arbiter, or 0 while it has none."""
    for pid in children(lab.agent_pid):
        with contextlib.suppress(OSError):  # the child has exited
            if b"\0arbiter\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def on_host(lab: Lab, key: str, name: str) -> Path:
    """Return the path of a file in a container's run directory, as the agent's mount namespace
    shows it."""
    return Path(f"/proc/{lab.agent_pid}/root{lab.run_dir}/{key}/{name}")


def lease_moves(lab: Lab, key: str) -> None:
    file = on_host(lab, key, names.FILE_LEASE)

    def written_ns() -> int:
        found = lease_file.decode(file.read_bytes(), 0)
        return found[1].written_ns if found else 0

    before_ns = written_ns()
    lab.wait_until(lambda: written_ns() > before_ns, "the arbiter to write the lease again")


def test_an_arbiter_that_is_killed_is_followed_by_another(lab: Lab) -> None:
    lab.wait_until(lambda: sample(lab, "gpuslice_arbiter_up") == 1, "the arbiter")
    starts = sample(lab, "gpuslice_arbiter_starts_total")
    logged = len(lab.agent_log.read_text())
    with granted(lab, core=30) as container:
        lease_moves(lab, container.id)
        first = arbiter(lab)
        os.kill(first, signal.SIGKILL)
        lab.wait_until(lambda: arbiter(lab) not in (0, first), "another arbiter")
        lease_moves(lab, container.id)
    assert sample(lab, "gpuslice_arbiter_starts_total") == starts + 1
    assert sample(lab, "gpuslice_ready") == 1
    lines = lab.agent_log.read_text()[logged:].splitlines()
    (line,) = [each for each in lines if "arbiter exited" in each]
    assert "signal 9" in line and "again_in_s=0.1" in line


def test_an_agent_that_is_killed_leaves_no_arbiter(lab: Lab) -> None:
    lab.wait_until(lambda: arbiter(lab) != 0, "the arbiter")
    first = arbiter(lab)
    lab.stop_agent(signal.SIGKILL)
    lab.wait_until(lambda: not Path(f"/proc/{first}").exists(), "the arbiter to exit")
    lab.start_agent()
    lab.wait_until(lambda: arbiter(lab) != 0, "another arbiter")


@contextlib.contextmanager
def loads_get_their_shares(lab: Lab) -> Iterator[str]:
    """Run a load in each of two containers, with 30 and 70 percent. For ten seconds, in which the
    block runs, each must get its share to within 15 points, because other tests also run.
    `python -m bench core` allows 10 points, on a machine that runs nothing else."""
    with (
        granted(lab, core=30, name="small") as small,
        granted(lab, core=70, name="large") as large,
        ThreadPoolExecutor(2) as threads,
    ):
        loads = [threads.submit(each.exec, [LOAD, "13", "500"]) for each in (small, large)]
        time.sleep(3.5)
        yield small.id
        outs = [load.result(timeout=60).out for load in loads]
    seconds = [[share for at_s, share in load_output.seconds(out) if int(at_s) > 2] for out in outs]
    small_share, large_share = (sum(each[:10]) / 10 for each in seconds)
    assert abs(small_share - 30) <= 15 and abs(large_share - 70) <= 15, outs


@measured
def test_an_agent_that_is_killed_costs_no_container_its_share(lab: Lab) -> None:
    """Each container keeps its part of each cycle until the next agent's arbiter serves."""
    with loads_get_their_shares(lab) as small:
        lab.stop_agent(signal.SIGKILL)
        time.sleep(2)
        lab.start_agent()
        lab.wait_until(lambda: arbiter(lab) != 0, "the next arbiter")
        lease_moves(lab, small)


@pytest.mark.parametrize("both", [False, True], ids=["alone", "with its arbiter"])
@measured
def test_an_agent_that_is_stopped_costs_no_container_its_share(lab: Lab, both: bool) -> None:
    """The arbiter continues without the agent. If both stop, each container keeps its part."""
    lab.wait_until(lambda: arbiter(lab) != 0, "the arbiter")
    stopped = [lab.agent_pid, *([arbiter(lab)] if both else [])]
    with loads_get_their_shares(lab):
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(3.5)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    lab.wait_until(lambda: sample(lab, "gpuslice_arbiter_up") == 1, "the arbiter")


def test_a_long_kernel_is_reported(lab: Lab) -> None:
    """The library sees that a kernel runs for more than a second. The pod gets an event."""
    counted = "gpuslice_long_kernel_containers_total"
    before = sample(lab, counted)
    with granted(lab, core=30) as container:
        assert container.exec([LOAD, "3", "1500000", "--step", "1"]).code == 0
        lab.wait_until(lambda: sample(lab, counted) == before + 1, "the kernel to be counted")
        assert said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, container)


def figures_agree(lab: Lab, pod: str, share: float) -> None:
    """Wait until the library's and NVML's metrics of the container both show this share."""

    def read(name: str, window: str = "") -> float:
        labels = {"namespace": "default", "pod": pod, "container": "main"}
        labels |= {"uuid": lab.gpus[0].uuid} | ({"window": window} if window else {})
        text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        return sample(lab, f"{SERIES}{name}{{{text}}}")

    def agree() -> bool:
        found = [read("share_ratio", each) for each in ("1s", "10s")]
        found.append(read("nvml_utilization_ratio"))
        settled = read("busy_seconds_total") > 2
        return settled and all(abs(each - share) < 0.06 for each in found)

    lab.wait_until(agree, f"a share of {share} by the library and by NVML")
    assert read("request_ratio") == share
    assert read("throttled_seconds_total") > 1


def test_a_share_is_forced_if_the_operator_configures_it(lab: Lab) -> None:
    with agent_with(lab, "--core-policy", "capped"):
        with granted(lab, core=30, name="forced") as container:
            data = on_host(lab, container.id, names.FILE_GRANT).read_bytes()
            grant = grant_file.decode(data)
            assert grant is not None and grant.gpus[0].policy is grant_file.Policy.CAPPED
            assert container.exec(["sh", "-c", f"{LOAD} 90 1000 >/dev/null 2>&1 &"]).code == 0
            figures_agree(lab, "forced", 0.3)
        lab.wait_until(lambda: f"\n{SERIES}" not in get(lab, "/metrics")[1], "its series to vanish")
