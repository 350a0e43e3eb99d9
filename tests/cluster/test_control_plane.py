"""The control plane of the cluster tests: it ends with its owner, and etcd refuses other users."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
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
print(*(process.pid for process in plane._started.values()), flush=True)
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
    """Its API server would answer."""
    his = int(control_plane.server.rpartition(":")[2])
    ours = ControlPlane(tmp_path / "ours")
    ours.directory.mkdir()
    ours._write_credentials()
    ours._start_etcd()
    try:
        with pytest.raises(ControlPlaneError, match="address already in use"):
            ours._start_apiserver(his)
    finally:
        ours.stop()


def test_only_its_owner_can_reach_etcd(control_plane: ControlPlane) -> None:
    """Access to it bypasses all rights in Kubernetes."""
    place = control_plane.etcd_socket.parent
    assert place.stat().st_mode & 0o077 == 0
    connections = psutil.Process(control_plane.etcd.pid).net_connections("all")
    assert {each.family for each in connections} == {socket.AF_UNIX}
    sockets = {str(each.laddr) for each in connections if each.laddr}
    assert sockets == {str(control_plane.etcd_socket), "peers:0"}
    for name in ("service-accounts.key", "tokens.csv", "admin.kubeconfig"):
        assert (control_plane.directory / name).stat().st_mode & 0o077 == 0, name
