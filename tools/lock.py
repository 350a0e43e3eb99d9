"""`make lock`: writes requirements.lock, from which `make setup` installs, out of pyproject.toml.

The lock has a version and hashes for each package that a checkout needs, for all supported versions
of Python and both architectures. A version that the lock has already stays unless pyproject.toml
excludes it or the command gets `--upgrade`. The file names no registry. Only the standard library
is used, for setup.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = Path("requirements.lock")
_OLDEST_PYTHON: Final = "3.11"
_INSTALLER: Final = "uv"
"""The program that installs from the lock. pip installs it first, at the lock's version."""
_OPTIONS: Final = ("--universal", "--generate-hashes", "--no-annotate", "--no-header")


def requirements(root: Path, extras: Sequence[str] | None = None) -> list[str]:
    """Return what the build, the product and the extras of pyproject.toml require; None: all."""
    document = tomllib.loads((root / "pyproject.toml").read_text())
    project = document["project"]
    optional = project["optional-dependencies"]
    named = [optional[extra] for extra in (optional if extras is None else extras)]
    return [*document["build-system"]["requires"], *project["dependencies"], *chain(*named)]


def installer(root: Path) -> str:
    """Return the lines of the lock for uv."""
    found = re.search(rf"^{_INSTALLER}==(.*\\\n)*.*\n", (root / LOCK).read_text(), re.MULTILINE)
    assert found is not None
    return found[0]


def main(arguments: Sequence[str]) -> int:
    command = [str(Path(sys.executable).with_name(_INSTALLER)), "pip", "compile", "--quiet", "-"]
    options = [*_OPTIONS, "--python-version", _OLDEST_PYTHON, "--output-file", str(LOCK)]
    given = "\n".join([*requirements(ROOT), _INSTALLER])
    return subprocess.run(
        [*command, *options, *arguments], cwd=ROOT, input=given, text=True
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
