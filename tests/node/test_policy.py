"""The policy's rows on which containers hold a GPU, and on the variables that they set."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from lab.node.catalogue import (
    AUDITING_IMAGE,
    ENVIRON_IMAGE,
    OWN_PRELOAD,
    PRELOADING_IMAGE,
    PYTHON_IMAGE,
    TWICE_IMAGE,
)
from lab.node.cri import Process, Sandbox
from lab.node.lab import Lab

from .conftest import GIB, LINKED_PROBE, PROBE, hold_all, probe
from .rows import HALF, NONE, OWN, one, refused, two

pytestmark = pytest.mark.node

UUID = "GPU-5e1f0a70-0000-4000-8000-000000000000"

_CUDA_PYTHON = """
from cuda.bindings import driver as d
d.cuInit(0)
error, context = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])
d.cuCtxSetCurrent(context)
print(d.cuMemGetInfo()[2], int(d.cuMemAlloc(30 << 30)[0]))
"""


def _environ(**values: str) -> Process:
    return Process(PYTHON_IMAGE, environ=values)


def test_a_container_with_a_grant(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        container = pod.run("main", OWN)
        assert probe(container).held_to(HALF)
        assert f"{names.ENV_VISIBLE_DEVICES}={UUID}\n" in container.exec(["env"]).out


def test_a_container_without_one_in_the_same_pod(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        main, side = pod.run("main", OWN), pod.run("side", OWN)
        assert not probe(side).driver
        assert NONE in side.exec(["env"]).out
        assert side.exec(["ls", names.CONTAINER_DIR]).code != 0
        assert probe(main).held_to(HALF)


def test_an_init_container(lab: Lab) -> None:
    """The runtime sees a container that ends before the others are created. It may have all of the
    allocation, as Kubernetes counts. It holds nothing once it has exited, also while the kubelet
    keeps it."""
    whole = [(0, HALF, 50)]
    written = {**lab.share({"init": whole, "main": whole}), **lab.allocated(whole)}
    with lab.pod("granted", written) as pod:
        init = pod.run("init", OWN)
        assert probe(init).held_to(HALF)
        with refused("an_init_container"):
            pod.create("main", OWN)
        plain = pod.run("plain-init", OWN)
        assert not probe(plain).driver
        for container in (init, plain):
            container.stop()
        assert probe(pod.run("main", OWN)).held_to(HALF)


def test_a_sidecar(lab: Lab) -> None:
    with lab.pod("granted", two(lab)) as pod:
        side = pod.run("side", OWN)
        main = pod.run("main", OWN)
        hold_all(side)
        assert probe(main).held_to(HALF)
        assert probe(side).found_it_full()


def test_an_ephemeral_container(lab: Lab) -> None:
    """It joins the pod late, with a name that no grant can hold, and may see the main one's
    processes; in a pod of Koordinator's it is one of the containers that share."""
    debug = Process(PYTHON_IMAGE, capabilities=["SYS_PTRACE"])
    with lab.pod("granted", one(lab), of=Sandbox(pid="POD")) as pod:
        main = pod.run("main", OWN)
        hold_all(main)
        debugger = pod.run("debugger-x7k2p", debug)
        assert not probe(debugger).driver
        assert NONE in debugger.exec(["env"]).out
        assert debugger.exec(["ls", "/dev/simgpu"]).code != 0
    with lab.pod("koordinator", lab.allocated([(0, HALF, 50)])) as pod:
        pod.run("main", OWN)
        assert probe(pod.run("debugger-x7k2p", debug)).held_to(HALF)


def test_a_pod_without_a_grant_on_a_managed_node(lab: Lab) -> None:
    with lab.pod("plain") as pod:
        container = pod.run("main", Process(ENVIRON_IMAGE))
        assert not probe(container).driver
        assert f"{names.ENV_VISIBLE_DEVICES}=all\n" in container.exec(["env"]).out
        assert container.exec(["cat", names.CONTAINER_PRELOAD]).code != 0


def test_an_allocation_without_the_label(lab: Lab) -> None:
    label = {names.LABEL_ISOLATION_PROVIDER: "HAMi-core"}
    for labels in ({}, label):
        with lab.pod("allocated", lab.allocated([(0, HALF, 50)]), labels) as pod:
            assert probe(pod.run("main", OWN)).held_to(HALF)


def test_an_unknown_isolation_provider(lab: Lab) -> None:
    labels = {names.LABEL_ISOLATION_PROVIDER: "mps"}
    with lab.pod("labelled", one(lab), labels) as pod, refused("an_unknown_isolation_provider"):
        pod.create("main", OWN)
    with lab.pod("labelled", {}, labels) as pod:
        assert pod.run("main", OWN).exec(["true"]).code == 0


def test_visible_devices_of_an_image(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        main, side = (pod.run(name, Process(ENVIRON_IMAGE)) for name in ("main", "side"))
        assert probe(main).held_to(HALF)
        assert f"{names.ENV_VISIBLE_DEVICES}={UUID}\n" in main.exec(["env"]).out
        assert not probe(side).driver
        assert NONE in side.exec(["env"]).out


def test_visible_devices_of_a_pod(lab: Lab) -> None:
    for value in ("GPU-00000000-0000-0000-0000-000000000000", "0,1", "all", "none"):
        with lab.pod("granted", one(lab)) as pod:
            container = pod.run("main", _environ(NVIDIA_VISIBLE_DEVICES=value))
            assert probe(container).held_to(HALF)
            assert f"{names.ENV_VISIBLE_DEVICES}={UUID}\n" in container.exec(["env"]).out


def test_visible_devices_that_name_gpus_without_a_grant(lab: Lab) -> None:
    with lab.pod("granted", lab.share({"other": [(0, HALF, 50)]})) as pod:
        for value in ("0", UUID):
            container = pod.run("main", _environ(NVIDIA_VISIBLE_DEVICES=value))
            assert not probe(container).driver
            assert NONE in container.exec(["env"]).out
            container.remove()


@pytest.mark.parametrize("value", ["", OWN_PRELOAD])
def test_ld_preload_in_the_environment(lab: Lab, value: str) -> None:
    """Set by the pod, by a program that is run, and by the image."""
    with lab.pod("granted", one(lab)) as pod:
        container = pod.run("main", _environ(LD_PRELOAD=value))
        for program in (PROBE, LINKED_PROBE):
            assert probe(container, [program]).held_to(HALF)
            given = ["env", f"LD_PRELOAD={value}", program]
            assert probe(container, given).held_to(HALF)
            by_sh = ["env", "-i", "sh", "-c", f"LD_PRELOAD='{value}' exec {program}"]
            assert probe(container, by_sh).held_to(HALF)
        maps = container.exec(["cat", "/proc/self/maps"]).out
        assert (OWN_PRELOAD in maps) == (OWN_PRELOAD in value)
        assert names.FILE_LIBRARY in maps
        assert container.exec(["python3", "-c", _CUDA_PYTHON]).out == f"{HALF} 2\n"


def test_an_ld_preload_of_libc_or_the_driver(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        for process in (
            _environ(LD_PRELOAD="libc.so.6"),
            _environ(LD_PRELOAD=f"{OWN_PRELOAD}:libcuda.so.1"),
            Process(PRELOADING_IMAGE),
        ):
            with refused("an_ld_preload_of_libc_or_the_driver"):
                pod.create("main", process)
        assert pod.run("side", Process(PRELOADING_IMAGE)).exec(["true"]).code == 0


def test_ld_audit_in_the_environment(lab: Lab) -> None:
    with lab.pod("audited", one(lab)) as pod:
        for process in (_environ(LD_AUDIT=OWN_PRELOAD), Process(AUDITING_IMAGE)):
            with refused("ld_audit_in_the_environment"):
                pod.create("main", process)
        assert probe(pod.run("main", _environ(LD_AUDIT=""))).held_to(HALF)
        assert pod.run("side", Process(AUDITING_IMAGE)).exec(["true"]).code == 0


def test_limits_in_the_environment(lab: Lab) -> None:
    written = {
        f"{key}{number}": value
        for key, value in ((names.ENV_MEMORY_LIMIT, "40g"), (names.ENV_CORE_LIMIT, "100"))
        for number in ("", "_0", "_1")
    }
    with lab.pod("granted", one(lab)) as pod:
        process = _environ(**written, CUDA_DEVICE_MEMORY_SHARED_CACHE="/tmp/mine")
        container = pod.run("main", process)
        assert probe(container).held_to(HALF)
        printed = container.exec(["env"]).out
        assert f"{names.ENV_MEMORY_LIMIT}_0={HALF}\n" in printed
        assert f"{names.ENV_CORE_LIMIT}=50\n" in printed
        assert f"{names.ENV_SHARED_CACHE}={names.SHARED_CACHE_PATH}\n" in printed


def test_a_core_policy_in_the_environment(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        container = pod.run("main", _environ(GPU_CORE_UTILIZATION_POLICY="DISABLE"))
        assert probe(container).held_to(HALF)


def test_control_switched_off_in_the_environment(lab: Lab) -> None:
    with lab.pod("granted", one(lab)) as pod:
        container = pod.run("main", _environ(CUDA_DISABLE_CONTROL="true"))
        assert probe(container).held_to(HALF)
        assert probe(container, ["env", "CUDA_DISABLE_CONTROL=1", PROBE]).held_to(HALF)


def test_a_key_twice_in_the_environment(lab: Lab) -> None:
    with lab.pod("twice", one(lab)) as pod, refused("a_key_twice_in_the_environment"):
        pod.create("main", Process(TWICE_IMAGE))
    for written in ({}, lab.share({"other": [(0, GIB, 50)]})):
        with lab.pod("plain", written) as pod:
            assert pod.run("main", Process(TWICE_IMAGE)).exec(["true"]).code == 0
