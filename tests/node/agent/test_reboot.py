"""A node reboots without the agent. By default, as here, NRI's validator is off in containerd."""

from __future__ import annotations

import re

import pytest

from lab.node.cri import CriError
from tests.support import GIB

from ..scene import OWN, Files, granted, lab_of, one, probe, sample

pytestmark = pytest.mark.node

MOST = 79 * GIB


def test_a_share_that_started_before_the_agent_keeps_its_allocation(test_programs: Files) -> None:
    """The share runs without its GPU. Until it is deleted, no other pod gets the capacity."""
    with lab_of([80 * GIB], test_programs, validator=False) as lab:
        with lab.pod("second", one(lab, MOST, core=100)) as second:
            with granted(lab, name="first") as first:
                assert not probe(first).driver
                lab.start_agent()
                assert sample(lab, 'gpuslice_stray_containers{kind="not_adjusted"}') == 1
                assert sample(lab, "gpuslice_containers_not_measured") == 0
                with pytest.raises(CriError, match=r"insufficient free capacity.*/first/main"):
                    second.create("main", OWN)
            container = second.run("main", OWN)
            assert probe(container).limited_to(MOST)
        adjusted = r".*request=CreateContainer outcome=adjusted .* pod=second .*"
        (line,) = re.findall(adjusted, lab.agent_log.read_text())
        assert f" gpus={lab.gpus[0].uuid}:79Gi:100 policy=fair library=" in line
        assert line.endswith(f"key={container.id}")
