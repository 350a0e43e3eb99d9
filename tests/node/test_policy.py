"""The policy's rows about which containers hold a GPU, their variables, and their lifecycle."""

from __future__ import annotations

import os
import time
from typing import Literal

import pytest

from gpuslice.contract import names
from lab.node.catalogue import ENVIRON_IMAGE, OWN_PRELOAD, PYTHON_IMAGE
from lab.node.cri import Process, Sandbox
from lab.node.lab import Lab

from .scene import (
    HALF,
    LINKED_PROBE,
    NONE,
    OWN,
    PROBE,
    QUARTER,
    granted,
    hold_all,
    one,
    probe,
    refused,
)

pytestmark = pytest.mark.node

UUID_LINE = f"{names.ENV_VISIBLE_DEVICES}=GPU-5e1f0a70-0000-4000-8000-000000000000\n"

_CUDA_PYTHON = """
from cuda.bindings import driver as d
d.cuInit(0)
error, context = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])
d.cuCtxSetCurrent(context)
print(d.cuMemGetInfo()[2], int(d.cuMemAlloc(30 << 30)[0]))
"""


def _environ(**values: str) -> Process:
    return Process(PYTHON_IMAGE, environ=values)


def _main_has_its_share_and_side_no_gpu(lab: Lab, process: Process) -> None:
    with lab.pod("granted", one(lab)) as pod:
        main, side = pod.run("main", process), pod.run("side", process)
        assert probe(main).held_to(HALF)
        assert UUID_LINE in main.exec(["env"]).out
        assert not probe(side).driver
        assert NONE in side.exec(["env"]).out
        assert side.exec(["ls", names.CONTAINER_DIR]).code != 0


def test_a_container_with_a_grant(lab: Lab) -> None:
    _main_has_its_share_and_side_no_gpu(lab, OWN)


def test_variables_that_name_gpus(lab: Lab) -> None:
    """Either the image or the pod sets the variable."""
    for process in (Process(ENVIRON_IMAGE), _environ(NVIDIA_VISIBLE_DEVICES="0,1")):
        _main_has_its_share_and_side_no_gpu(lab, process)


def test_an_init_container(lab: Lab) -> None:
    """An init container may have the pod's whole allocation, because it ends before the main
    containers start. After its exit it holds nothing, although the kubelet keeps it."""
    whole = [(0, HALF, 50)]
    written = {**lab.share({"init": whole, "main": whole}), **lab.allocated(whole)}
    with lab.pod("granted", written) as pod:
        init = pod.run("init", OWN)
        assert probe(init).held_to(HALF)
        with refused("test_an_init_container"):
            pod.create("main", OWN)
        plain = pod.run("plain-init", OWN)
        assert not probe(plain).driver
        for container in (init, plain):
            container.stop()
        assert probe(pod.run("main", OWN)).held_to(HALF)


@pytest.mark.parametrize("sees", ["CONTAINER", "POD", "NODE"])
def test_two_shares_of_a_pod(lab: Lab, sees: Literal["CONTAINER", "POD", "NODE"]) -> None:
    shares = lab.share({"main": [(0, HALF, 50)], "side": [(0, QUARTER, 25)]})
    with lab.pod("granted", shares, of=Sandbox(pid=sees)) as pod:
        side, main = pod.run("side", OWN), pod.run("main", OWN)
        hold_all(side)
        assert probe(main).held_to(HALF)
        assert probe(side).found_it_full()


def test_an_ephemeral_container(lab: Lab) -> None:
    """The container joins the pod late, under a name that no grant can contain, and may see the
    main container's processes. In a pod of Koordinator's it uses the pod's share, too."""
    debug = Process(PYTHON_IMAGE, capabilities=["SYS_PTRACE"])
    with lab.pod("granted", one(lab), of=Sandbox(pid="POD")) as pod:
        hold_all(pod.run("main", OWN))
        debugger = pod.run("debugger-x7k2p", debug)
        assert not probe(debugger).driver
        assert NONE in debugger.exec(["env"]).out
        assert debugger.exec(["ls", "/dev/simgpu"]).code != 0
    with lab.pod("koordinator", lab.allocated([(0, HALF, 50)])) as pod:
        pod.run("main", OWN)
        assert probe(pod.run("debugger-x7k2p", debug)).held_to(HALF)


@pytest.mark.parametrize("value", ["", OWN_PRELOAD])
def test_ld_preload_in_the_environment(lab: Lab, value: str) -> None:
    """The pod's environment sets the variable, or a program that starts another one does."""
    with granted(lab, _environ(LD_PRELOAD=value)) as container:
        for program in (PROBE, LINKED_PROBE):
            assert probe(container, [program]).held_to(HALF)
            by_sh = ["env", "-i", "sh", "-c", f"LD_PRELOAD='{value}' exec {program}"]
            assert probe(container, by_sh).held_to(HALF)
        maps = container.exec(["cat", "/proc/self/maps"]).out
        assert (OWN_PRELOAD in maps) == (OWN_PRELOAD in value)
        assert names.FILE_LIBRARY in maps
        assert container.exec(["python3", "-c", _CUDA_PYTHON]).out == f"{HALF} 2\n"


def test_variables_of_a_limit(lab: Lab) -> None:
    written = {
        f"{key}{number}": value
        for key, value in ((names.ENV_MEMORY_LIMIT, "40g"), (names.ENV_CORE_LIMIT, "100"))
        for number in ("", "_0", "_1")
    } | {"GPU_CORE_UTILIZATION_POLICY": "DISABLE", "CUDA_DISABLE_CONTROL": "true"}
    process = _environ(**written, CUDA_DEVICE_MEMORY_SHARED_CACHE="/tmp/mine")
    with granted(lab, process) as container:
        assert probe(container).held_to(HALF)
        printed = container.exec(["env"]).out
        assert f"{names.ENV_MEMORY_LIMIT}_0={HALF}\n" in printed
        assert f"{names.ENV_CORE_LIMIT}=50\n" in printed
        assert f"{names.ENV_SHARED_CACHE}={names.SHARED_CACHE_PATH}\n" in printed


# --- lifecycle


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
    """Return the process's number of open files, without pipes, which belong to short-lived
    children. The least of several counts excludes files that a measurement reads for a moment."""
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
