"""Other NRI plugins on a real containerd: their changes to our containers, and to others."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri

from .conftest import GIB
from .plugins import Meddling, plugin

pytestmark = pytest.mark.node

HALF = 20 * GIB
OWN = Process(PYTHON_IMAGE)


def steal_the_preload(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    if any(mount.destination == names.CONTAINER_PRELOAD for mount in container.mounts):
        adjustment.mounts.add(destination=f"-{names.CONTAINER_PRELOAD}")
        adjustment.mounts.add(
            destination=names.CONTAINER_PRELOAD, source="/dev/null", type="bind", options=["bind"]
        )


def take_the_variable_over(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """Claim the variable, with the value that the agent set."""
    for line in container.env:
        key, _, value = line.partition("=")
        if key == names.ENV_VISIBLE_DEVICES:
            adjustment.env.add(key=f"-{key}")
            adjustment.env.add(key=key, value=value)


def remove_the_grant(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    if any(mount.destination == names.CONTAINER_DIR for mount in container.mounts):
        adjustment.mounts.add(destination=f"-{names.CONTAINER_DIR}")


@pytest.mark.parametrize(
    ("meddle", "what"),
    [
        (steal_the_preload, "mount /etc/ld.so.preload was removed or has another source"),
        (remove_the_grant, "mount /.gpuslice was removed"),
        (take_the_variable_over, "environment NVIDIA_VISIBLE_DEVICES was set by 60-other"),
    ],
)
def test_a_container_with_a_share_stays_as_we_made_it(
    lab: Lab, meddle: Meddling, what: str
) -> None:
    with (
        plugin(lab, meddle),
        lab.pod("ours", lab.share({"main": [(0, HALF, 50)]})) as pod,
        pytest.raises(CriError, match=what),
    ):
        pod.create("main", OWN)
