"""The policy's rows on pods with wider views, on GPUs, and on the lifecycle of containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process, Sandbox
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri

from .conftest import GIB, hold_all, probe, said
from .plugins import Meddling, plugin
from .rows import HALF, OWN, QUARTER, one, refused, two

pytestmark = pytest.mark.node

ALLOCATED = names.ANNOTATION_DEVICE_ALLOCATED


def test_host_pid(lab: Lab) -> None:
    with lab.pod("host-pid", one(lab), of=Sandbox(pid="NODE")) as pod:
        container = pod.run("main", OWN)
        assert "lab.node.holder" in container.exec(["cat", "/proc/1/cmdline"]).out
        assert probe(container).held_to(HALF)
        hold_all(container)
        assert probe(container).found_it_full()


def test_a_shared_process_namespace(lab: Lab) -> None:
    with lab.pod("shared-pid", two(lab), of=Sandbox(pid="POD")) as pod:
        main, side = pod.run("main", OWN), pod.run("side", OWN)
        hold_all(side)
        assert probe(main).held_to(HALF)
        assert probe(side).found_it_full()


PRIVILEGED = Process(PYTHON_IMAGE, privileged=True)


def test_privileged_with_a_grant(lab: Lab) -> None:
    with (
        lab.pod("privileged", one(lab), of=Sandbox(privileged=True)) as pod,
        refused("privileged_with_a_grant"),
    ):
        pod.create("main", PRIVILEGED)


def test_privileged_without_a_grant(lab: Lab) -> None:
    with lab.pod("privileged", of=Sandbox(privileged=True)) as pod:
        container = pod.run("main", PRIVILEGED)
        assert container.exec(["ls", names.CONTAINER_DIR]).code != 0
        assert container.exec(["sh", "-c", "ls /dev | grep -c ."]).out != "0\n"


@pytest.mark.parametrize("names_given", [["SYS_ADMIN"], ["ALL"], ["NET_ADMIN", "SYS_ADMIN"]])
def test_a_capability_that_loosens_the_limit(lab: Lab, names_given: list[str]) -> None:
    strong = Process(PYTHON_IMAGE, capabilities=names_given)
    with lab.pod("strong", one(lab)) as pod:
        container = pod.create("main", strong)
        with refused("a_capability_that_loosens_the_limit"):
            container.start()
        side = pod.run("side", strong)
        assert side.exec(["umount", "/dev/mqueue"]).code == 0
        assert not probe(side).driver
        # With these it keeps the GPU: nodes are the cgroup's to open, and the pod's processes its
        # own.
        weak = Process(PYTHON_IMAGE, capabilities=["MKNOD", "SYS_PTRACE", "NET_ADMIN"])
        container.remove()
        assert probe(pod.run("main", weak)).held_to(HALF)


@pytest.mark.parametrize("sees", ["POD", "NODE", "of a target"])
def test_a_strong_neighbour_that_sees_its_processes(lab: Lab, sees: str) -> None:
    """It can enter the other's mount namespace, and unmount there. It starts, and is reported."""
    targeted = sees == "of a target"
    of = Sandbox(pid="NODE" if sees == "NODE" else "CONTAINER" if targeted else "POD")
    with lab.pod("shared", one(lab), of=replace(of, privileged=True)) as pod:
        main = pod.run("main", OWN)
        target = main.id if targeted else ""
        for strong in (PRIVILEGED, Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"])):
            helper = pod.run("helper", replace(strong, target=target))
            assert helper.exec(["true"]).code == 0
            assert said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, helper)
            helper.remove()
        weak = pod.run("helper", Process(PYTHON_IMAGE, capabilities=["NET_ADMIN"], target=target))
        assert not said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, weak)
        assert probe(main).held_to(HALF)


@pytest.fixture
def allowing(lab: Lab) -> Iterator[Lab]:
    lab.stop_agent()
    lab.start_agent(options=["--allow-capability", "SYS_ADMIN"])
    yield lab
    lab.stop_agent()
    lab.start_agent()


_ENTER = f"""
import ctypes, glob, os
libc = ctypes.CDLL(None)
granted = glob.glob("/proc/[0-9]*/root{names.CONTAINER_DIR}")[0]
process = granted.split("/")[2]
assert libc.setns(os.open("/proc/" + process + "/ns/mnt", os.O_RDONLY), 0) == 0
assert libc.umount2({names.CONTAINER_PRELOAD.encode()!r}, 0) == 0
"""


def test_a_capability_that_the_operator_allows(allowing: Lab) -> None:
    with allowing.pod("strong", one(allowing)) as pod:
        strong = Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"])
        assert probe(pod.run("main", strong)).held_to(HALF)
    with allowing.pod("shared", one(allowing), of=Sandbox(pid="POD")) as pod:
        main, helper = pod.run("main", OWN), pod.run("helper", strong)
        assert probe(main).held_to(HALF)
        assert helper.exec(["python3", "-c", _ENTER]) == (0, "", "")
        assert probe(main).escaped_to(40 * GIB)


def test_a_sandboxed_runtime(lab: Lab) -> None:
    with (
        lab.pod("kata", one(lab), of=Sandbox(runtime_handler="kata")) as pod,
        refused("a_sandboxed_runtime"),
    ):
        pod.create("main", OWN)
    with lab.pod("kata", of=Sandbox(runtime_handler="kata")) as pod:
        assert pod.run("main", OWN).exec(["true"]).code == 0
    with lab.pod("runc", one(lab), of=Sandbox(runtime_handler="runc")) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)


_NETWORK = """#!/bin/sh
printf '{"cniVersion":"1.0.0","interfaces":['
printf '{"name":"%s","sandbox":"%s"}],' "$CNI_IFNAME" "$CNI_NETNS"
printf '"ips":[{"interface":0,"address":"192.0.2.2/24"}]}'
"""
"""Reports an address, and configures none: a pod with a user namespace may not have the host's
network, and the lab has no other."""


@pytest.fixture
def networked(lab: Lab) -> Lab:
    for name in ("told", "loopback"):
        program = lab.directory / "cni/bin" / name
        program.write_text(_NETWORK)
        program.chmod(0o755)
    network = {"cniVersion": "1.0.0", "name": "told", "plugins": [{"type": "told"}]}
    (lab.directory / "cni/conf/10-told.conflist").write_text(json.dumps(network))
    # The pod's root is an unprivileged user on the host, and its root file system lies below.
    lab.directory.chmod(0o711)
    return lab


def _runc_maps_mounts() -> bool:
    told = subprocess.run(["runc", "features"], capture_output=True, check=False).stdout
    features = json.loads(told or "{}").get("linux", {})
    enabled = features.get("mountExtensions", {}).get("idmap", {}).get("enabled", False)
    return bool(enabled)


def test_a_user_namespace(networked: Lab) -> None:
    """With an older runc the runtime itself refuses, and nothing of ours is left of it."""
    with networked.pod("mapped", one(networked), of=Sandbox(user_namespace=True)) as pod:
        if _runc_maps_mounts():
            container = pod.run("main", OWN)
            assert container.exec(["cat", "/proc/self/uid_map"]).out.split()[:2] == ["0", "65536"]
            assert probe(container).held_to(HALF)
        else:
            with pytest.raises(CriError, match="idmap mounts not supported"):
                pod.run("main", OWN)
    networked.wait_until(
        lambda: networked.namespace.run(["ls", networked.run_dir]).stdout == "", "an empty run"
    )


@pytest.fixture
def given(lab: Lab) -> Iterator[Process]:
    """A container to which a device plugin gives the GPU by its CDI name, as the kubelet requests
    it."""
    there = lab.directory / "cdi" / "nvidia.json"
    shutil.copy(lab.sim_dir / "cdi" / "nvidia.json", there)
    yield Process(PYTHON_IMAGE, cdi=[f"{names.CDI_KIND}={lab.gpus[0].uuid}"])
    there.unlink()


def test_a_gpu_of_another_device_plugin(lab: Lab, given: Process) -> None:
    with lab.pod("mixed", lab.share({"main": [(0, QUARTER, 25)]})) as pod:
        main, other = pod.run("main", OWN), pod.run("other", given)
        assert names.ENV_VISIBLE_DEVICES not in other.exec(["env"]).out
        assert probe(main).held_to(QUARTER)
        # Our limit is not in force: running two device plugins on one GPU leaves it unlimited.
        taken = probe(other)
        assert taken.driver and taken.total == 40 * GIB
    assert "keeps the GPU of another device plugin" in lab.agent_log.read_text()


def test_a_gpu_of_another_device_plugin_and_a_grant(lab: Lab, given: Process) -> None:
    with (
        lab.pod("twice", one(lab)) as pod,
        refused("a_gpu_of_another_device_plugin_and_a_grant"),
    ):
        pod.create("main", given)


CDI_NAMES = ("acme.com/thing=all", "management.nvidia.com/gpu=all", "acme.com/nic=0")


@pytest.fixture
def specs(lab: Lab) -> Iterator[Lab]:
    """The GPU under names of other vendors, in the directory that the runtime reads and the agent
    is configured with; and a device that is no GPU."""
    gpu = json.loads((lab.sim_dir / "cdi" / "nvidia.json").read_text())
    gpu["devices"][0]["name"] = "all"
    nic = {"name": "0", "containerEdits": {"env": ["NIC=0"]}}
    written = [
        {**gpu, "kind": CDI_NAMES[0].partition("=")[0]},
        {**gpu, "kind": CDI_NAMES[1].partition("=")[0]},
        {"cdiVersion": "0.6.0", "kind": CDI_NAMES[2].partition("=")[0], "devices": [nic]},
    ]
    paths = [lab.directory / "cdi" / f"other-{number}.json" for number in range(3)]
    for path, spec in zip(paths, written, strict=True):
        path.write_text(json.dumps(spec))
    lab.stop_agent()
    lab.start_agent(options=["--cdi-dir", lab.directory / "cdi"])
    yield lab
    for path in paths:
        path.unlink()
    lab.stop_agent()
    lab.start_agent()


def _asks_for(name: str) -> Meddling:
    def meddle(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
        adjustment.cdi_devices.add(name=name)

    return meddle


def _opens(major: int) -> Meddling:
    def meddle(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
        rule = adjustment.linux.resources.devices.add(allow=True, type="c", access="rwm")
        rule.major.value = major

    return meddle


def test_a_gpu_of_another_nri_plugin(specs: Lab) -> None:
    with (
        plugin(specs, _asks_for(CDI_NAMES[0])),
        specs.pod("brought", one(specs)) as pod,
        refused("a_gpu_of_another_nri_plugin"),
    ):
        pod.create("main", OWN)
    for meddle, what in (
        (_asks_for(CDI_NAMES[1]), f"CDI device {CDI_NAMES[1]}"),
        (_opens(195), "the cgroup rule c 195:"),
    ):
        with (
            plugin(specs, meddle),
            specs.pod("brought", one(specs)) as pod,
            pytest.raises(CriError, match=f"injected a GPU by {re.escape(what)}"),
        ):
            pod.create("main", OWN)
        for written in ({}, specs.share({"other": [(0, HALF, 50)]})):
            with plugin(specs, meddle), specs.pod("brought", written) as pod:
                pod.create("main", OWN)


def test_a_thing_of_another_nri_plugin(specs: Lab) -> None:
    """Also if a device plugin gives it, beside a share."""
    with plugin(specs, _opens(10)), specs.pod("opens", one(specs)) as pod:
        assert probe(pod.run("main", OWN)).held_to(HALF)
    with plugin(specs, _asks_for(CDI_NAMES[2])):
        for written in ({}, one(specs)):
            with specs.pod("brought", written) as pod:
                container = pod.run("main", OWN)
                assert "NIC=0\n" in container.exec(["env"]).out
                assert probe(container).driver == bool(written)
    with specs.pod("given", one(specs)) as pod:
        container = pod.run("main", Process(PYTHON_IMAGE, cdi=[CDI_NAMES[2]]))
        assert probe(container).held_to(HALF)
    for name in CDI_NAMES[:2]:
        with (
            specs.pod("given", one(specs)) as pod,
            pytest.raises(CriError, match=f"already has a GPU.*CDI device {name}"),
        ):
            pod.create("main", Process(PYTHON_IMAGE, cdi=[name]))


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
