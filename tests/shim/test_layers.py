"""A folder of C includes only folders that precede it in the table of its README (vgpu/region.h
is the header of region/); and, as a header can hide a call upwards, the compiled files do not
depend on each other in a circle."""

from __future__ import annotations

import json
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.support import ROOT

_TABLES: Final = ("loader/hooks", "loader/resolve", "entry/resolve")
"""They list the functions of all folders by address."""
_OF_A_CONTEXT: Final = ("memory", "module", "graph", "context")
"""The simulated driver's: a context ends what it owns, and each of these uses a context."""
_UPWARD: Final = {"os/error.c includes region/"}
"""It has the texts of the results that vgpu/region.h lists."""
_OF_LIBC: Final = {"dlopen", "dlmopen", "dlsym", "dlvsym"}


@pytest.mark.parametrize("source", ["shim/src", "simgpu/src"])
def test_no_file_includes_a_folder_above_its_own(source: str) -> None:
    directory = ROOT / source
    folders = re.findall(r"^\| `(\w+)/` \|", (directory / "README.md").read_text(), re.MULTILINE)
    assert {entry.name for entry in directory.iterdir() if entry.is_dir()} == set(folders)
    upward = {
        f"{file.relative_to(directory)} includes {included}/"
        for level, folder in enumerate(folders)
        for file in sorted((directory / folder).iterdir())
        for included in re.findall(r'#include "(?:vgpu/)?(\w+)[/.]', file.read_text())
        if included in folders[level + 1 :]
    }
    assert upward == (_UPWARD if source == "shim/src" else set())


@pytest.mark.parametrize("part", ["shim", "simgpu"])
def test_no_file_calls_a_file_that_calls_it(part: str) -> None:
    defined: dict[str, set[str]] = {}
    used: dict[str, set[str]] = {}
    for compiled in json.loads((ROOT / "build/dev/compile_commands.json").read_text()):
        source = Path(compiled["file"])
        if source.parts[-4:-2] != (part, "src"):
            continue
        folder = source.parent.name
        node = "contexts" if folder in _OF_A_CONTEXT else f"{folder}/{source.stem}"
        listed = subprocess.run(
            ["nm", compiled["command"].split(" -o ")[1].split()[0]],
            cwd=compiled["directory"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        symbols = re.findall(r"^[\da-f ]+ ([A-Z]) (\S+)$", listed, re.MULTILINE)
        kinds: dict[bool, set[str]] = {True: set(), False: set()}
        for kind, name in symbols:
            # The null driver defines the same names; libc's dlsym is not the library's.
            kinds[kind == "U"].add(f"null {name}" if folder == "null" else name)
        used.setdefault(node, set()).update(kinds[True] - _OF_LIBC)
        defined.setdefault(node, set()).update(kinds[False])
    assert len(defined) > 20
    calls = {
        node: {other for other, of in defined.items() if other != node and of & used[node]}
        for node in defined
        if node not in _TABLES
    }
    TopologicalSorter(calls).prepare()
