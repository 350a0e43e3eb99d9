"""A node that starts again without the agent, under containerd's default: no validator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tests.node.conftest import GIB, probe
from tests.node.test_operations import sample

pytestmark = pytest.mark.node

_OWN = Process(PYTHON_IMAGE)


def test_a_share_that_started_before_the_agent_keeps_its_allocation(
    build_dir: Path, test_programs: dict[str, tuple[Path, int]]
) -> None:
    """It runs without its GPU; no other pod gets the capacity before it is deleted."""
    assert build_dir.is_dir()
    with Lab(
        [80 * GIB], test_programs, options=Options(validator=False, request_timeout_s=8)
    ) as lab:
        whole = lab.share({"main": [(0, 79 * GIB, 100)]})
        with lab.pod("second", whole) as second:
            with lab.pod("first", lab.share({"main": [(0, 20 * GIB, 50)]})) as first:
                assert not probe(first.run("main", _OWN)).driver
                lab.start_agent()
                assert sample(lab, 'gpuslice_stray_containers{kind="not_adjusted"}') == 1
                assert sample(lab, "gpuslice_containers_not_measured") == 0
                with pytest.raises(CriError, match=r"insufficient free capacity.*/first/main"):
                    second.create("main", _OWN)
            container = second.run("main", _OWN)
            taken = probe(container)
            assert (taken.total, taken.filled, taken.more) == (79 * GIB, 0, 2)
        adjusted = r".*request=CreateContainer outcome=adjusted .* pod=second .*"
        (line,) = re.findall(adjusted, lab.agent_log.read_text())
        assert f" gpus={lab.gpus[0].uuid}:79Gi:100 library=" in line
        assert line.endswith(f"key={container.id}")
