"""A folder of shim/src includes only folders that precede it."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "shim" / "src"
FOLDERS = ("os", "region", "loader", "ledger", "charge", "hooks")
"""Each may include itself and those before it."""


def test_no_file_includes_a_folder_above_its_own() -> None:
    assert {entry.name for entry in SOURCE.iterdir()} == set(FOLDERS)
    upward = [
        f"{file.relative_to(SOURCE)} includes {included}/"
        for level, folder in enumerate(FOLDERS)
        for file in sorted((SOURCE / folder).iterdir())
        for included in re.findall(r'#include "(\w+)/', file.read_text())
        if included in FOLDERS[level + 1 :]
    ]
    assert not upward
