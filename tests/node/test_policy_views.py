"""The policy's rows about pods with a wider view of the node or of each other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process, Sandbox
from lab.node.lab import Lab
from tests.support import run

from .attacks import ENTER
from .scene import HALF, OWN, WHOLE, agent_with, granted, one, probe, refused, said

pytestmark = pytest.mark.node

PRIVILEGED = Process(PYTHON_IMAGE, privileged=True)
STRONG = Process(PYTHON_IMAGE, capabilities=["SYS_ADMIN"])


def test_a_capability_that_loosens_the_limit(lab: Lab) -> None:
    every = Process(PYTHON_IMAGE, capabilities=["ALL"])
    with lab.pod("strong", one(lab)) as pod:
        container = pod.create("main", every)
        with refused("test_a_capability_that_loosens_the_limit"):
            container.start()
        side = pod.run("side", every)
        assert side.exec(["umount", "/dev/mqueue"]).code == 0
        assert not probe(side).driver
        # With these capabilities the container keeps its GPU: its cgroup limits the devices that it
        # opens, and it sees only its own pod's processes.
        weak = Process(PYTHON_IMAGE, capabilities=["MKNOD", "SYS_PTRACE", "NET_ADMIN"])
        container.remove()
        assert probe(pod.run("main", weak)).held_to(HALF)


def test_a_neighbour_with_a_capability_that_sees_its_processes(lab: Lab) -> None:
    """`kubectl debug` with a target makes this neighbour. It can enter the target's mount namespace
    and unmount files there. The agent only reports it."""
    with lab.pod("shared", one(lab), of=Sandbox(privileged=True)) as pod:
        main = pod.run("main", OWN)
        for number, strong in enumerate((PRIVILEGED, STRONG)):
            helper = pod.run(f"helper-{number}", replace(strong, target=main.id))
            assert said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, helper)
        weak = Process(PYTHON_IMAGE, capabilities=["NET_ADMIN"], target=main.id)
        assert not said(lab, names.EVENT_LIMIT_NOT_ENFORCEABLE, pod.run("helper", weak))
        assert probe(main).held_to(HALF)


def test_a_capability_that_the_operator_allows(lab: Lab) -> None:
    with agent_with(lab, "--allow-capability", "SYS_ADMIN"):
        with granted(lab, STRONG) as container:
            assert probe(container).held_to(HALF)
        with lab.pod("shared", one(lab), of=Sandbox(pid="POD")) as pod:
            main, helper = pod.run("main", OWN), pod.run("helper", STRONG)
            assert probe(main).held_to(HALF)
            assert helper.exec(["python3", "-c", ENTER]) == (0, "", "")
            assert probe(main).escaped_to(WHOLE)


_NETWORK = """#!/bin/sh
printf '{"cniVersion":"1.0.0","interfaces":['
printf '{"name":"%s","sandbox":"%s"}],' "$CNI_IFNAME" "$CNI_NETNS"
printf '"ips":[{"interface":0,"address":"192.0.2.2/24"}]}'
"""
"""A CNI plugin that reports an address and configures none. A pod with a user namespace may not use
the host's network, and the lab has no other."""


def _runc_maps_mounts() -> bool:
    features = json.loads(run("runc", "features").stdout or "{}").get("linux", {})
    return bool(features.get("mountExtensions", {}).get("idmap", {}).get("enabled", False))


def test_a_user_namespace(lab: Lab) -> None:
    """A runc that cannot map mounts refuses the container. Then the agent's files are removed."""
    for name in ("static", "loopback"):
        program = lab.directory / "cni/bin" / name
        program.write_text(_NETWORK)
        program.chmod(0o755)
    network = {"cniVersion": "1.0.0", "name": "static", "plugins": [{"type": "static"}]}
    (lab.directory / "cni/conf/10-static.conflist").write_text(json.dumps(network))
    # The pod's root user is unprivileged on the host. Its root file system is in this directory.
    lab.directory.chmod(0o711)
    with lab.pod("mapped", one(lab), of=Sandbox(user_namespace=True)) as pod:
        if _runc_maps_mounts():
            container = pod.run("main", OWN)
            assert container.exec(["cat", "/proc/self/uid_map"]).out.split()[:2] == ["0", "65536"]
            assert probe(container).held_to(HALF)
        else:
            with pytest.raises(CriError, match="idmap mounts not supported"):
                pod.run("main", OWN)
    lab.wait_until(lambda: lab.namespace.run(["ls", lab.run_dir]).stdout == "", "an empty run")
