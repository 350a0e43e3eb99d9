"""Builds the measuring programs of bench/c, and provides a grant to run them with."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, names
from shim import region

_ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = _ROOT / "build" / "dev"
PRELOAD: Final = {"LD_PRELOAD": str(BUILD / "lib" / "libvgpu.so")}
_NULL_GPU: Final = "GPU-6e756c6c-0000-4000-8000-000000000000"
_LIMIT_BYTES: Final = 32 << 30


def built(*targets: str) -> Sequence[Path]:
    """The programs of these targets, up to date."""
    for command in (
        ["cmake", "--preset", "dev"],
        ["cmake", "--build", "--preset", "dev", "--target", "vgpu", "null_cuda", *targets],
    ):
        subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
    return [BUILD / "bin" / target for target in targets]


@contextmanager
def granted(driver: str = "null") -> Iterator[Mapping[str, str]]:
    """An environment with that driver of simgpu on the library path and a grant of its one GPU."""
    with tempfile.TemporaryDirectory(dir=region.parent(os.environ)) as name:
        region.create(Path(name), [grant_file.Gpu(_NULL_GPU, _LIMIT_BYTES, 100, 0)])
        yield {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(BUILD / "lib" / driver),
            names.ENV_DIR: name,
        }


def output(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout
