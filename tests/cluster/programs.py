"""Helm, and the chart's own programs with the rights of a pod's account."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.support import run
from tools import kubernetes


def helm(plane: ControlPlane, *arguments: str | Path) -> str:
    where = (f"--namespace={names.NAMESPACE}", f"--kubeconfig={plane.kubeconfig()}")
    done = run(kubernetes.ensure_helm(), *arguments, *where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_in_pod(
    plane: ControlPlane, account: Path, token: str, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the Python program as in a pod. account: the directory with its credentials."""
    account.mkdir(exist_ok=True)
    (account / "ca.crt").write_bytes(plane.ca.read_bytes())
    (account / "token").write_text(token)
    text = program.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account))
    host, _, port = plane.server.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return run(sys.executable, "-c", text, *arguments, env=environ)
