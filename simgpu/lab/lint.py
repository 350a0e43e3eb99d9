"""`make lint`: each checker as one timed step, its output only when it finds something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from simgpu.lab.progress import step

_ROOT: Final = Path(__file__).resolve().parents[2]
_BIN: Final = Path(sys.executable).parent

_CHECKS: Final = {
    "ruff": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy --strict": ["mypy"],
    "import contracts": ["lint-imports"],
    "clang-format": ["clang-format", "--dry-run", "-Werror"],
}


def _c_files() -> list[str]:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h"]
    listed = subprocess.run(tracked, cwd=_ROOT, text=True, capture_output=True, check=True)
    return [name for name in listed.stdout.split() if (_ROOT / name).exists()]


def main() -> int:
    failed = []
    for title, (tool, *arguments) in _CHECKS.items():
        command = [str(_BIN / tool), *arguments]
        if tool == "clang-format":
            command += _c_files()
        with step(title) as shown:
            done = subprocess.run(command, cwd=_ROOT, text=True, capture_output=True)
            shown.failed = done.returncode != 0
        if done.returncode != 0:
            failed.append(title)
            sys.stdout.write(done.stdout + done.stderr)
    if failed:
        sys.stdout.write(f"lint: {', '.join(failed)}: see above\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
