"""Helm, which renders and installs the chart: PATH's, if it is new enough, else built once.

It is built from the modules of Kubernetes (kubernetes.py), whose packages most of it is: they are
compiled once for both. Standard library only: setup runs it.
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

from tools import kubernetes
from tools.building import build, cache_dir, print_paths, runs

_MINIMUM: Final = (3, 14)
_FREE_BYTES_WANTED: Final = 2_000_000_000


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Helm on this machine, or None; builds nothing."""
    on_path = shutil.which("helm", path=environ.get("PATH", ""))
    if on_path is not None and _version(Path(on_path), environ) >= _MINIMUM:
        return Path(on_path)
    cached = _final(environ) / "helm"
    return cached if runs(cached) else None


def ensure(environ: Mapping[str, str] = os.environ) -> Path:
    """Helm, built if this machine has none that is new enough. Raises ProgramsError."""
    if found := find(environ):
        return found
    final = _final(environ)
    title = f"building Helm {kubernetes.HELM_VERSION} with Go, once"
    with build(final, title, _FREE_BYTES_WANTED, environ) as under_way:
        kubernetes.write_module(under_way)
        flags = f"-X {kubernetes.HELM_MODULE}/internal/version.version=v{kubernetes.HELM_VERSION}"
        kubernetes.compile_in(under_way, f"{kubernetes.HELM_MODULE}/cmd/helm", "helm", flags)
    return final / "helm"


def _final(environ: Mapping[str, str]) -> Path:
    return cache_dir(environ) / "bin" / f"helm-{kubernetes.HELM_VERSION}"


def _version(program: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    done = subprocess.run(
        [program, "version", "--short"], env=dict(environ), text=True, capture_output=True
    )
    match = re.match(r"v(\d+)\.(\d+)\.", done.stdout)
    return (int(match[1]), int(match[2])) if done.returncode == 0 and match else (0, 0)


if __name__ == "__main__":
    sys.exit(print_paths(lambda: [ensure()]))
