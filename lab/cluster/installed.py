"""Installs manifests/ on the lab's cluster, unchanged but for the Deployment.

No registry has the Deployment's images: its two programs run beside the control plane instead
(installation.py), under the same account and with the configuration from the cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from contract import names
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import InstallationError

_ROOT: Final = Path(__file__).resolve().parents[2]
_MANIFESTS: Final = _ROOT / "manifests"
_DEPLOYMENT: Final = "40-scheduler.yaml"
_CONFIG_MAP: Final = "gpuslice-kube-scheduler"
_CONFIG_FILE: Final = "kube-scheduler.yaml"


def install(plane: ControlPlane, served: Sequence[str]) -> None:
    """served: additional schedulerNames, as an operator adds them. Raises InstallationError."""
    paths = [path for path in sorted(_MANIFESTS.glob("*.yaml")) if path.name != _DEPLOYMENT]
    plane.install_kinds()
    plane.kubectl("apply", *(f"--filename={path}" for path in paths))
    if served:
        serve = [option for name in served for option in ("--serve", name)]
        policies = sorted(map(str, _MANIFESTS.glob("5*.yaml")))
        command = [sys.executable, "-m", "scheduler", "profiles", *serve, *policies]
        command.append(f"--kubeconfig={plane.kubeconfig()}")
        environ = {**os.environ, **plane.environ()}
        done = subprocess.run(command, cwd=_ROOT, env=environ, text=True, capture_output=True)
        if done.returncode != 0:
            raise InstallationError(done.stderr.strip())
        plane.kubectl("apply", "-f", "-", given=done.stdout)


def configuration(plane: ControlPlane) -> Mapping[str, Any]:
    """kube-scheduler's configuration, from the cluster."""
    listed = plane.kubectl("get", "configmap", _CONFIG_MAP, f"-n={names.NAMESPACE}", "-o=yaml")
    written: Mapping[str, Any] = yaml.safe_load(yaml.safe_load(listed)["data"][_CONFIG_FILE])
    return written
