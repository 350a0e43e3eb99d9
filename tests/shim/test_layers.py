"""A folder of C may include only headers of folders that precede it in its README's table.
(vgpu/region.h is the header of region/.) Calls could still go to later folders, so the calls
between compiled files must not form a circle."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.support import ROOT, run

_TABLES: Final = ("loader/hooks", "loader/resolve", "entry/resolve")
"""Files that refer to functions of all folders in tables. Their uses are not counted."""
_OF_A_CONTEXT: Final = ("memory", "module", "graph", "context")
"""simgpu's folders that call each other: a context's end frees what these folders allocate."""
_OF_LIBC: Final = {"dlopen", "dlmopen", "dlsym", "dlvsym"}


@pytest.mark.parametrize(
    ("source", "allowed"),
    # error.c has a text for each result code of vgpu/region.h.
    [("shim/src", {"os/error.c includes region/"}), ("simgpu/src", set())],
)
def test_no_file_includes_a_folder_above_its_own(source: str, allowed: set[str]) -> None:
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
    assert upward == allowed


@pytest.mark.parametrize("part", ["shim", "simgpu"])
def test_no_file_calls_a_file_that_calls_it(part: str) -> None:
    defined: defaultdict[str, set[str]] = defaultdict(set)
    used: defaultdict[str, set[str]] = defaultdict(set)
    for compiled in json.loads((ROOT / "build/dev/compile_commands.json").read_text()):
        source = Path(compiled["file"])
        if source.parts[-4:-2] != (part, "src"):
            continue
        folder = source.parent.name
        node = "contexts" if folder in _OF_A_CONTEXT else f"{folder}/{source.stem}"
        compiled_file = compiled["command"].split(" -o ")[1].split()[0]
        listed = run("nm", compiled_file, cwd=compiled["directory"], check=True).stdout
        for kind, symbol in re.findall(r"^[\da-f ]+ ([A-Z]) (\S+)$", listed, re.MULTILINE):
            # The null driver defines the same names as simgpu. Calls of dlsym go to libc's.
            name = f"null {symbol}" if folder == "null" else symbol
            if kind != "U":
                defined[node].add(name)
            elif name not in _OF_LIBC:
                used[node].add(name)
    assert len(defined) > 20
    calls = {
        node: {other for other, of in defined.items() if other != node and of & used[node]}
        for node in defined
        if node not in _TABLES
    }
    TopologicalSorter(calls).prepare()
