"""The node agent within the limits of a pod: `python -m tests.node.limited_agent OPTIONS ARGS`.

--files: the limit of open files. --cgroup: an existing control group of memory, by its path.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--files", default="")
    parser.add_argument("--cgroup", type=Path)
    chosen, rest = parser.parse_known_args(arguments)
    if chosen.files:
        soft, hard = map(int, chosen.files.split(":"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if chosen.cgroup:
        (chosen.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    os.execv(sys.executable, [sys.executable, "-m", "nri_plugin", *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
