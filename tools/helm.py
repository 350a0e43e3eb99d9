"""Helm, which renders and installs the chart: PATH's, if it is new enough, else built once.

Standard library only: setup runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools import building
from tools.published import Published

HELM: Final = Published(
    name="helm",
    version="4.3.1",
    module="helm.sh/helm/v4",
    package="cmd/helm",
    version_variable="helm.sh/helm/v4/internal/version.version",
    free_bytes_wanted=2_000_000_000,
)
_MINIMUM: Final = (3, 14)


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Helm on this machine, or None; builds nothing."""
    on_path = shutil.which("helm", path=environ.get("PATH", ""))
    if on_path is not None and _version(Path(on_path), environ) >= _MINIMUM:
        return Path(on_path)
    return HELM.find(environ)


def ensure(environ: Mapping[str, str] = os.environ) -> Path:
    """Helm, built if this machine has none that is new enough. Raises ProgramsError."""
    return find(environ) or HELM.ensure(environ)


def _version(program: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    said = subprocess.run(
        [program, "version", "--short"], env=dict(environ), text=True, capture_output=True
    )
    match = re.match(r"v(\d+)\.(\d+)\.", said.stdout)
    return (int(match[1]), int(match[2])) if said.returncode == 0 and match else (0, 0)


if __name__ == "__main__":
    sys.exit(building.print_paths(lambda: [ensure()]))
