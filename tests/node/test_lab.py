"""The lab itself, whose pods see no GPU and end with the lab's owner. The demos of one node."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from lab.demo import faults, node
from lab.node.lab import Lab
from tests.support import run, until

from .scene import OWN

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("build_dir")]

_SYSTEM = ("/run", "/var", "/etc", "/opt")


def test_the_lab_writes_nothing_to_the_systems_containerd(bare_lab: Lab) -> None:
    with bare_lab.pod("plain") as pod:
        container = pod.run("main", OWN)
        inside = psutil.Process(bare_lab.namespace.pid).children(recursive=True)
        bound = {
            str(connection.laddr)
            for process in inside
            for connection in process.net_connections("unix")
            if connection.laddr
        }
        assert any("/s/" in path for path in bound), "the shims listen somewhere"
        assert not {path for path in bound if not path.startswith(f"{bare_lab.directory}/")}
        for identity in (container.id, pod.id):
            assert run("find", *_SYSTEM, "-xdev", "-name", f"*{identity}*").stdout == ""


def test_a_root_that_may_not_mount_is_refused_and_leaves_nothing() -> None:
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # a path short enough for sockets
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    environ = {**os.environ, "TMPDIR": str(place)}
    done = run(*without, sys.executable, "-m", "lab.demo.node", env=environ)
    assert done.returncode == 1
    assert "must be a privileged one" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
    place.rmdir()


_OWNER = """
import sys, time
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab
with Lab() as lab:
    lab.cri.run_pod("left").run("main", Process(PYTHON_IMAGE))
    sys.stdout.write(f"{lab.directory} {lab.namespace.cgroup} {lab.namespace.pid}\\n")
    sys.stdout.flush()
    time.sleep(600)
"""


def test_nothing_outlives_an_owner_killed_with_9() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        directory, cgroup, pid = owner.stdout.readline().split()
        inside = psutil.Process(int(pid)).children(recursive=True)
        assert any("containerd-shim" in process.name() for process in inside)
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not Path(directory).exists(), "the holder has removed the directory")
    assert not psutil.pid_exists(int(pid))
    assert not any(process.is_running() for process in inside)
    assert directory not in Path("/proc/self/mounts").read_text()
    assert run("find", "/sys/fs/cgroup", "-name", cgroup).stdout == ""


@pytest.mark.parametrize(("demo", "checks"), [(node, 12), (faults, 12)])
def test_the_checks_of_a_demo_of_one_node_pass(demo: object, checks: int) -> None:
    out = io.StringIO()
    done = node.perform(out, vars(demo)["run"])
    assert done == 0 and f"{checks} checks, all passed." in out.getvalue(), out.getvalue()
