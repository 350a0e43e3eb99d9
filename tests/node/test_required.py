"""The stricter option of docs/failures.md: containerd requires the agent of every container."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.containerd_config import Options
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tests.support import ROOT

from .conftest import GIB, PROBE, probe

pytestmark = pytest.mark.node

DOCUMENT = ROOT / "docs/failures.md"
OWN = Process(PYTHON_IMAGE)
TOLERATES = {names.ANNOTATION_TOLERATES_MISSING_AGENT: "true"}


def recipe() -> Options:
    """The configuration that the document prescribes."""
    (block,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    ((_, nri),) = tomllib.loads(block)["plugins"].items()
    chosen = nri["default_validator"]
    assert chosen["enable"] is True
    return Options(
        request_timeout_s=8,
        required_plugins=chosen["required_plugins"],
        toleration=chosen["tolerate_missing_plugins_annotation"],
    )


def test_a_node_that_requires_the_agent_boots_by_its_exemptions(
    build_dir: Path, test_programs: dict[str, tuple[Path, int]]
) -> None:
    assert build_dir.is_dir()
    absent = 'required plugin "gpuslice" not present'
    with Lab([40 * GIB], test_programs, options=recipe()) as lab:
        # The network, static pods, and the agent itself come first, and no other pod.
        with lab.pod("network", TOLERATES) as pod:
            assert pod.run("main", OWN).exec(["true"]).code == 0
        with lab.pod("web") as pod:
            with pytest.raises(CriError, match=absent):
                pod.create("main", OWN)
            lab.start_agent()
            assert pod.run("main", OWN).exec(["true"]).code == 0
        # With the exemption written by the pod's author: no GPU is injected, whatever runs.
        lab.stop_agent()
        held = {**lab.allocated([(0, 20 * GIB, 50)]), **TOLERATES}
        with lab.pod("forger", held) as pod:
            assert not probe(pod.run("main", Process(PYTHON_IMAGE)), (PROBE,)).driver
