"""Prints the number of lines of each part of this tree, and its limit.

Recorded data (folders named `recorded`, traces, pictures), generated protobuf modules and the lock
of requirements are left out. Each part has a limit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the tree. pattern: matches the paths' start."""

    name: str
    pattern: str
    limit: int


PARTS: Final = (
    Part("product with manifests", r"(gpuslice|nri_plugin|scheduler|shim|manifests)/", 58_800),
    Part("of it `scheduler/`", r"scheduler/", 10_175),
    Part("tests", r"tests/", 68_825),
    Part("simgpu", r"simgpu/", 16_130),
    Part("lab, tools, bench, traces", r"(lab|tools|bench|traces)/", 19_050),
    Part("documents", r"(docs/|README\.md|CONTRIBUTING\.md|CHANGELOG\.md|\.github/.*\.md)", 6_785),
    Part("all", r"", 170_805),
)
_LEFT_OUT: Final = re.compile(
    r"\.(gz|tar|bin|zst|png|svg|ico|woff2?)$|recorded[^/]*\.tsv$|_pb2(_grpc)?\.pyi?$|_ffi\.py$|traces/data/"
    r"|(^|/)recorded/|(^|/)(requirements\.lock|package-lock\.json)$"
)


def counted() -> Mapping[str, int]:
    """Return the number of lines of each tracked file, by path."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True
    )
    paths = [path for path in listed.stdout.splitlines() if not _LEFT_OUT.search(path)]
    files = {path: ROOT / path for path in paths if (ROOT / path).is_file()}
    return {path: len(file.read_bytes().splitlines()) for path, file in files.items()}


def lines(part: Part, by_path: Mapping[str, int]) -> int:
    return sum(count for path, count in by_path.items() if re.match(part.pattern, path))


def main() -> int:
    by_path = counted()
    for part in PARTS:
        sys.stdout.write(f"{part.name}: {lines(part, by_path):,} of {part.limit:,}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
