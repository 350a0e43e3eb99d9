"""Other NRI plugins on a real containerd: their changes to our containers, and to others."""

from __future__ import annotations

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from nri_plugin.messages import nri_pb2 as nri

from .conftest import GIB
from .plugins import plugin

pytestmark = pytest.mark.node


def take_the_variable_over(container: nri.Container, adjustment: nri.ContainerAdjustment) -> None:
    """Claim the variable, with the value that the agent set."""
    for line in container.env:
        key, _, value = line.partition("=")
        if key == names.ENV_VISIBLE_DEVICES:
            adjustment.env.add(key=f"-{key}")
            adjustment.env.add(key=key, value=value)


def test_a_container_with_a_share_stays_as_we_made_it(lab: Lab) -> None:
    with (
        plugin(lab, take_the_variable_over),
        lab.pod("ours", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod,
        pytest.raises(CriError, match="NVIDIA_VISIBLE_DEVICES was set by 60-other"),
    ):
        pod.create("main", Process(PYTHON_IMAGE))
