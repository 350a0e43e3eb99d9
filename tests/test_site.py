"""The documents are built as a site by mkdocs-material, without a warning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support import ROOT, run

SITE = ROOT / ".github/site"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    programs, site = tmp_path / "venv/bin", tmp_path / "site"
    installed = [
        run(sys.executable, "-m", "venv", tmp_path / "venv"),
        run(programs / "pip", "install", "--quiet", "--requirement", SITE / "requirements.txt"),
    ]
    assert [each.returncode for each in installed] == [0, 0], installed[-1].stderr
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "GPUSLICE_REPOSITORY": "https://r.test/g",
    }
    options = ("--strict", "--config-file", SITE / "mkdocs.yml", "--site-dir", site)
    built = run(programs / "mkdocs", "build", *options, env=environment)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stdout + built.stderr
    index = (site / "index.html").read_text()
    assert 'href="requests/"' in index
    assert 'href="https://r.test/g/blob/HEAD/CONTRIBUTING.md"' in index
    assert (site / "pictures/from-pod-to-limit.svg").exists()
