"""Builds and runs the measuring programs of bench/c."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from traces.host import BUILD, LIBRARY, ROOT

PRELOAD: Final = {"LD_PRELOAD": str(LIBRARY)}


def built(*targets: str) -> Sequence[Path]:
    """Build these targets, and return the paths of their programs."""
    for command in (
        ["cmake", "--preset", "dev"],
        ["cmake", "--build", "--preset", "dev", "--target", "vgpu", "null_cuda", *targets],
    ):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return [BUILD / "bin" / target for target in targets]


def output(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout
