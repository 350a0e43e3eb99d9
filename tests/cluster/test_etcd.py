"""Clients that the control plane's etcd accepts: access to it bypasses all rights in Kubernetes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

_OTHER_UID = 65534
_ASK = """
import os, ssl, sys, urllib.request
scheme, port, path, certificate, *user = sys.argv[1:]
"".encode("idna")  # imported where it is first used, which another could not
if user:
    os.setgroups([]); os.setgid(int(user[0])); os.setuid(int(user[0]))
tls = ssl._create_unverified_context()
try:
    if certificate:
        tls.load_cert_chain(certificate, certificate.replace(".crt", ".key"))
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
    asking = urllib.request.build_opener(*handlers)
    print(asking.open(f"{scheme}://127.0.0.1:{port}{path}", b"{}", 10).read().decode())
except Exception as error:
    print("refused:", repr(error))
"""
_REFUSALS = (
    *("HTTP Error 400", "RemoteDisconnected", "CERTIFICATE_REQUIRED", "SSLEOFError"),
    *("ConnectionReset", "BrokenPipe"),
)
_CLIENTS, _PEERS = "/v3/cluster/member/list", "/members"


def _ask(scheme: str, port: int, path: str, certificate: Path | str = "", *user: str) -> str:
    words = [scheme, str(port), path, str(certificate), *user]
    done = subprocess.run([sys.executable, "-c", _ASK, *words], text=True, capture_output=True)
    return done.stdout


def _ports(plane: ControlPlane) -> set[int]:
    """The ports on which etcd listens on this machine."""
    held = set()
    for each in Path(f"/proc/{plane.etcd.pid}/fd").iterdir():
        try:
            held.add(os.readlink(each))
        except FileNotFoundError:
            continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = (row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held)
    return {int(row[1].partition(":")[2], 16) for row in listening}


def test_etcd_refuses_clients_without_the_certificate_on_every_port(
    control_plane: ControlPlane,
) -> None:
    clients = int(control_plane._etcd_url.rpartition(":")[2])
    ports = _ports(control_plane)
    assert clients in ports
    assert len(ports) == 2, "one for clients, one for peers"
    as_user = [str(_OTHER_UID)] if os.geteuid() == 0 else []
    for port in ports:
        for scheme in ("http", "https"):
            for path in (_CLIENTS, _PEERS):
                said = _ask(scheme, port, path, "", *as_user)
                assert any(each in said for each in _REFUSALS), f"{scheme} {port} {path}: {said}"


def test_a_pod_that_has_the_certificate_is_answered(control_plane: ControlPlane) -> None:
    port = int(control_plane._etcd_url.rpartition(":")[2])
    certificate = control_plane.directory / "etcd.crt"
    assert '"members"' in _ask("https", port, _CLIENTS, certificate)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another")
def test_another_user_cannot_read_the_certificate(control_plane: ControlPlane) -> None:
    port = int(control_plane._etcd_url.rpartition(":")[2])
    certificate = control_plane.directory / "etcd.crt"
    assert "PermissionError" in _ask("https", port, _CLIENTS, certificate, str(_OTHER_UID))


def test_secrets_are_for_their_owner_alone(control_plane: ControlPlane) -> None:
    for name in ("etcd.key", "service-accounts.key", "tokens.csv", "admin.kubeconfig"):
        if (path := control_plane.directory / name).exists():
            assert path.stat().st_mode & 0o077 == 0, name
    assert (control_plane.directory / "etcd.key").exists()
