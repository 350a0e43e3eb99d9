"""The demo, on this machine: every claim holds, and README shows what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.lab import demo

pytestmark = pytest.mark.node


def test_readme_shows_what_the_demo_prints(build_dir: Path) -> None:
    assert build_dir.is_dir()
    written = demo.README.read_text()
    assert demo.in_readme(written, demo.sample()) == written, (
        "README's sample is stale: python -m simgpu.lab.demo --write-readme"
    )
