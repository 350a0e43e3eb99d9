"""The lab itself: pods run, no GPU is in them, and nothing outlasts the lab's owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Process
from lab.node.lab import Lab
from tests.support import until

pytestmark = pytest.mark.node


_SYSTEM = ("/run", "/var", "/etc", "/opt")


def test_the_lab_writes_nothing_to_the_systems_containerd(bare_lab: Lab) -> None:
    with bare_lab.pod("plain") as pod:
        container = pod.run("main", Process(PYTHON_IMAGE))
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
            found = ["find", *_SYSTEM, "-xdev", "-name", f"*{identity}*"]
            assert subprocess.run(found, capture_output=True, check=False).stdout == b""


def test_a_root_that_may_not_mount_is_refused_and_leaves_nothing(build_dir: Path) -> None:
    assert build_dir.is_dir()
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short enough to be used
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run(
        [*without, sys.executable, "-m", "lab.demo.node"],
        env={**os.environ, "TMPDIR": str(place)},
        text=True,
        capture_output=True,
        check=False,
    )
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


def test_nothing_outlives_an_owner_killed_with_9(build_dir: Path) -> None:
    assert build_dir.is_dir()
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory, cgroup, pid = owner.stdout.readline().split()
    inside = psutil.Process(int(pid)).children(recursive=True)
    assert any("containerd-shim" in process.name() for process in inside)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until(lambda: not Path(directory).exists(), "the holder has removed the directory")
    assert not psutil.pid_exists(int(pid))
    assert not any(process.is_running() for process in inside)
    assert directory not in Path("/proc/self/mounts").read_text()
    left = subprocess.run(["find", "/sys/fs/cgroup", "-name", cgroup], capture_output=True)
    assert left.stdout == b""
