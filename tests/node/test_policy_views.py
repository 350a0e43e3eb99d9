"""The policy's rows on pods with a wider view of the node, or of each other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process, Sandbox
from lab.node.lab import Lab

from .conftest import GIB, hold_all, probe, said
from .rows import HALF, OWN, one, refused, two

pytestmark = pytest.mark.node


def test_host_pid(lab: Lab) -> None:
    with lab.pod("host-pid", one(lab), of=Sandbox(pid="NODE")) as pod:
        container = pod.run("main", OWN)
        assert container.exec(["cat", "/proc/1/comm"]).out == "cat\n", "the lab's first process"
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
def test_a_neighbour_with_a_capability_that_sees_its_processes(lab: Lab, sees: str) -> None:
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
    for name in ("static", "loopback"):
        program = lab.directory / "cni/bin" / name
        program.write_text(_NETWORK)
        program.chmod(0o755)
    network = {"cniVersion": "1.0.0", "name": "static", "plugins": [{"type": "static"}]}
    (lab.directory / "cni/conf/10-static.conflist").write_text(json.dumps(network))
    # The pod's root is an unprivileged user on the host, and its root file system lies below.
    lab.directory.chmod(0o711)
    return lab


def _runc_maps_mounts() -> bool:
    printed = subprocess.run(["runc", "features"], capture_output=True, check=False).stdout
    features = json.loads(printed or "{}").get("linux", {})
    enabled = features.get("mountExtensions", {}).get("idmap", {}).get("enabled", False)
    return bool(enabled)


def test_a_user_namespace(networked: Lab) -> None:
    """An older runc refuses it itself, and leaves nothing of ours behind."""
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
