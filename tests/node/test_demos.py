"""The demos of one node, on this machine: their checks pass."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lab.demo import faults, node

pytestmark = pytest.mark.node


@pytest.mark.parametrize(("demo", "checks"), [(node, 12), (faults, 12)])
def test_the_checks_of_a_demo_of_one_node_pass(build_dir: Path, demo: object, checks: int) -> None:
    assert build_dir.is_dir()
    out = io.StringIO()
    done = node.perform(out, vars(demo)["run"])
    assert done == 0 and f"{checks} checks, all passed." in out.getvalue(), out.getvalue()
