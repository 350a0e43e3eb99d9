"""No folder has more files of source beside each other than ADR 45 allows."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import PurePath
from typing import Final

from tests.support import ROOT

_MAX_FILES: Final = 25


def test_no_folder_has_too_many_files_of_source() -> None:
    """Documents and tables of data are not counted."""
    patterns = ("*.py", "*.c", "*.h", "*.S", "*.def", "*.go")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    counts = Counter(str(PurePath(name).parent) for name in names)
    assert counts["shim/src/region"] > 1
    assert {folder: count for folder, count in counts.items() if count > _MAX_FILES} == {}
