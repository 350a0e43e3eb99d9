"""The control plane of the cluster tests: it starts, authenticates, and stops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.cluster.controlplane import ControlPlane, ControlPlaneError
from tests.support import until

pytestmark = pytest.mark.cluster

_OWNER = """
import sys, time
from pathlib import Path
from lab.cluster.controlplane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
plane.start()
plane.start_kube_scheduler()
print(plane._etcd.pid, plane._apiserver.pid, plane._schedulers[0].pid, flush=True)
time.sleep(600)
"""


def test_the_control_plane_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "owned")], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        owner.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all have ended")


def test_a_port_that_another_has_is_not_taken_for_ours(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Its etcd would answer, and two API servers would write to it."""
    his = int(control_plane._etcd_url.rpartition(":")[2])
    ours = ControlPlane(tmp_path / "ours")
    ours.directory.mkdir()
    ours._write_credentials()
    with pytest.raises(ControlPlaneError, match="address already in use"):
        ours._start_etcd(his)
    tried: list[int] = []

    def start(port: int) -> str:
        tried.append(port)
        return ours._start_etcd(port if len(tried) > 1 else his)

    url = ours._on_a_free_port(start)
    assert url.endswith(f":{tried[1]}")
    ours.stop()
