"""The demos of one node, on this machine: their checks pass, and docs/demo.md shows the output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lab.demo import faults, node

pytestmark = pytest.mark.node


def test_the_document_shows_what_the_demo_prints(build_dir: Path) -> None:
    assert build_dir.is_dir()
    written = node.DOCUMENT.read_text()
    assert node.documented(written) == written, "python -m lab.demo.node --write"


def test_three_faults_and_no_pod_without_its_limit(build_dir: Path) -> None:
    assert build_dir.is_dir()
    out = io.StringIO()
    done = node.perform(out, plain=True, masked=True, script=faults.run)
    assert done == 0 and "12 checks, all passed." in out.getvalue(), out.getvalue()
