"""The stricter option of docs/failures.md: containerd requires the agent of every container."""

from __future__ import annotations

import re
import tomllib

import pytest

from gpuslice.contract import names
from lab.node.cri import CriError
from tests.node.table import DOCUMENT

from .scene import HALF, OWN, Files, lab_of, probe

pytestmark = pytest.mark.node

TOLERATES = {names.ANNOTATION_TOLERATES_MISSING_AGENT: "true"}


def test_a_node_that_requires_the_agent_boots_by_its_exemptions(test_programs: Files) -> None:
    """The configuration is the one that the document prescribes."""
    (block,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    ((_, nri),) = tomllib.loads(block)["plugins"].items()
    chosen = nri["default_validator"]
    assert chosen["enable"] is True
    with lab_of(
        files=test_programs,
        required_plugins=chosen["required_plugins"],
        toleration=chosen["tolerate_missing_plugins_annotation"],
    ) as lab:
        # The network, static pods, and the agent itself come first, and no other pod.
        with lab.pod("network", TOLERATES) as pod:
            assert pod.run("main", OWN).exec(["true"]).code == 0
        with lab.pod("web") as pod:
            with pytest.raises(CriError, match='required plugin "gpuslice" not present'):
                pod.create("main", OWN)
            lab.start_agent()
            assert pod.run("main", OWN).exec(["true"]).code == 0
        # With the exemption written by the pod's author: no GPU is injected, whatever runs.
        lab.stop_agent()
        held = {**lab.allocated([(0, HALF, 50)]), **TOLERATES}
        with lab.pod("forger", held) as pod:
            assert not probe(pod.run("main", OWN)).driver
