"""A folder of C includes only folders that precede it in the table of its README."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT


@pytest.mark.parametrize("source", ["shim/src", "simgpu/src"])
def test_no_file_includes_a_folder_above_its_own(source: str) -> None:
    directory = ROOT / source
    folders = re.findall(r"^\| `(\w+)/` \|", (directory / "README.md").read_text(), re.MULTILINE)
    assert {entry.name for entry in directory.iterdir() if entry.is_dir()} == set(folders)
    upward = [
        f"{file.relative_to(directory)} includes {included}/"
        for level, folder in enumerate(folders)
        for file in sorted((directory / folder).iterdir())
        for included in re.findall(r'#include "(\w+)/', file.read_text())
        if included in folders[level + 1 :]
    ]
    assert not upward
