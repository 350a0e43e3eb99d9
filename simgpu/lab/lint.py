"""`make lint`: each checker as one timed step; its output is shown only if it finds something.

The type stubs of protobuf messages are generated first: they are large, and only mypy reads them,
so they are not committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simgpu.lab.progress import step

_ROOT: Final = Path(__file__).resolve().parents[2]
_BIN: Final = Path(sys.executable).parent

_STUBS: Final = "type stubs of messages"
_CHECKS: Final = {
    _STUBS: ["python", "-m", "grpc_tools.protoc", "-I.", "--mypy_out=quiet:."],
    "ruff": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy --strict": ["mypy"],
    "import contracts": ["lint-imports"],
    "clang-format": ["clang-format", "--dry-run", "-Werror"],
}


_FILES: Final = {_STUBS: ["*.proto"], "clang-format": ["*.c", "*.h"]}
"""Checks that take file names, by pattern."""


def _tracked(patterns: Sequence[str]) -> list[str]:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(tracked, cwd=_ROOT, text=True, capture_output=True, check=True)
    return [name for name in listed.stdout.split() if (_ROOT / name).exists()]


def main() -> int:
    failed = []
    # protoc finds its plugin for mypy by PATH.
    environment = {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    for title, (tool, *arguments) in _CHECKS.items():
        command = [str(_BIN / tool), *arguments]
        if title in _FILES:
            command += _tracked(_FILES[title])
        with step(title) as shown:
            done = subprocess.run(
                command, cwd=_ROOT, env=environment, text=True, capture_output=True
            )
            shown.failed = done.returncode != 0
        if done.returncode != 0:
            failed.append(title)
            sys.stdout.write(done.stdout + done.stderr)
    if failed:
        sys.stdout.write(f"lint: {', '.join(failed)}: see above\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
