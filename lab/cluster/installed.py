"""Installs gpuslice on the lab's cluster, unchanged but for the Deployment.

No registry has the Deployment's images: its two programs run beside the control plane instead
(installation.py), under the same account and with the configuration from the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import InstallationError
from tools import chart
from tools.building import ProgramsError


def install(plane: ControlPlane, served: Sequence[str]) -> None:
    """served: additional schedulerNames, as an operator adds them. Raises InstallationError."""
    plane.install_kinds()
    objects = manifests.objects()
    if served:
        try:
            objects = manifests.serving((names.SCHEDULER_NAME, *served))
        except (chart.ChartError, ProgramsError) as error:
            raise InstallationError(str(error)) from None
    kept = (each for each in manifests.in_force(objects) if each["kind"] != "Deployment")
    plane.apply_json(*kept)


def configuration(plane: ControlPlane) -> Mapping[str, Any]:
    """kube-scheduler's configuration, from the cluster."""
    listed = plane.kubectl(
        "get", "configmap", manifests.CONFIG_MAP, f"-n={names.NAMESPACE}", "-o=yaml"
    )
    written = yaml.safe_load(listed)["data"][manifests.CONFIG_FILE]
    configured: Mapping[str, Any] = yaml.safe_load(written)
    return configured
