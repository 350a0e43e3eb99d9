"""Fat binaries, packed images, and the variables of modules and libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import build
from tests.simgpu.host import Host
from tests.simgpu.programs.image_programs import PROGRAMS
from tests.support import ROOT

pytestmark = pytest.mark.sim


def _run(host: Host, name: str, *arguments: str | Path, **extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simgpu.programs.image_programs", name, *arguments],
        cwd=ROOT,
        env={**host.env(), **extra},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_images(driver_host: Host, name: str) -> None:
    _run(driver_host, name)


def test_a_library_that_fits_no_gpu_is_loaded_eagerly_too(driver_host: Host) -> None:
    _run(driver_host, "eager_loading", CUDA_MODULE_LOADING="EAGER")


def test_spoilt_images_under_sanitizers(host: Host, build_dir: Path, tmp_path: Path) -> None:
    host.build_dir = build_dir
    _run(host, "write_images", tmp_path)
    host.build_dir = build("asan")
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    options = "detect_leaks=0:allocator_may_return_null=1"
    _run(host, "spoilt_images", tmp_path, LD_PRELOAD=found.stdout.strip(), ASAN_OPTIONS=options)
