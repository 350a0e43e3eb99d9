"""The demo of three faults, on this machine: every check passes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lab.demo import faults as demo_faults
from lab.demo import node as demo_node

pytestmark = pytest.mark.node


def test_three_faults_and_no_pod_without_its_limit(build_dir: Path) -> None:
    assert build_dir.is_dir()
    out = io.StringIO()
    assert demo_node.perform(out, plain=True, masked=True, script=demo_faults.run) == 0, (
        out.getvalue()
    )
    assert "12 checks, all passed." in out.getvalue()
