"""libcuda over the daemon, through NVIDIA's unmodified cuda-bindings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simgpu.host import Host
from tests.support import ROOT

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", ["devices", "fill_the_gpu", "contexts", "green_streams"])
def test_cuda_bindings(driver_host: Host, name: str) -> None:
    driver_host.program("cuda_programs", name)


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        *[("0", "0"), ("1", "1"), ("1,0", "10"), ("1,7,0", "1"), ("0,0", "0")],
        ("GPU-5e1f0a70-0000-4000-8000-000000000001", "1"),
        *[("GPU-5e1f0a70", "none"), ("", "none"), ("-1", "none"), ("all", "none")],
    ],
)
def test_visible_devices(idle_host: Host, visible: str, left: str) -> None:
    idle_host.program("cuda_programs", "visible_devices", left, CUDA_VISIBLE_DEVICES=visible)


def test_without_gpus(build_dir: Path, tmp_path: Path) -> None:
    nowhere = Host(tmp_path / "absent", build_dir=build_dir)
    nowhere.program("cuda_programs", "no_device")


def lose(host: Host, end: Callable[[], None]) -> None:
    """Run a program that waits for a kernel of an hour. Meanwhile let `end` fail its GPU."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.simgpu.programs.cuda_programs", "lose_the_gpu"],
        cwd=ROOT,
        env=host.env(),
        text=True,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.wait()
        end()
    assert child.returncode == 0


def test_a_lost_gpu_ends_waits_and_answers_errors(driver_host: Host) -> None:
    lose(driver_host, lambda: driver_host.fault("lose"))


def test_a_daemon_that_ends_is_a_lost_gpu(sim_dir: Path, build_dir: Path) -> None:
    host = Host(sim_dir, build_dir=build_dir)
    host.up()
    lose(host, host.down)
