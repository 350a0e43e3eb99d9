"""Runs a program of this repository, `python -m MODULE ...`, within a pod's limits:
`python -m lab.node.limited OPTIONS MODULE ...`.

--files SOFT:HARD is the limit of open files. --cgroup is an existing control group of memory, which
is charged for all that the program and its children use.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.node.limited")
    parser.add_argument("--files", default="")
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if chosen.files:
        soft, hard = map(int, chosen.files.split(":"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if chosen.cgroup:
        (chosen.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    os.execv(sys.executable, [sys.executable, "-m", chosen.module, *chosen.arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
