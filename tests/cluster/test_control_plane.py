"""The control plane of the cluster tests: it ends with its owner, and etcd refuses other users."""

from __future__ import annotations

import http.client
import ssl
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


def test_etcd_needs_a_certificate_that_only_its_owner_can_read(control_plane: ControlPlane) -> None:
    """Access to it bypasses all rights in Kubernetes."""
    port = int(control_plane._etcd_url.rpartition(":")[2])
    link = http.client.HTTPSConnection(
        "127.0.0.1", port, context=ssl._create_unverified_context(), timeout=30
    )
    with pytest.raises((ssl.SSLError, ConnectionError)):
        link.request("POST", "/v3/cluster/member/list", "{}")
        link.getresponse()
    link.close()
    for name in ("etcd.key", "service-accounts.key", "tokens.csv", "admin.kubeconfig"):
        assert (control_plane.directory / name).stat().st_mode & 0o077 == 0, name
