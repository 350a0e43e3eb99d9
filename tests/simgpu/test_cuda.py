"""libcuda over the daemon, through NVIDIA's unmodified cuda-bindings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simgpu.host import Host
from tests.simgpu.programs import cuda_programs
from tests.support import GIB, MIB, ROOT

pytestmark = pytest.mark.sim


def start(host: Host, name: str, *arguments: str) -> subprocess.Popen[str]:
    """A program that prints a line when it is ready, and then waits on its stdin."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.simgpu.programs.cuda_programs", name, *arguments],
        cwd=ROOT,
        env=host.env(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() in ("held\n", "ready\n"), child.wait()
    return child


@pytest.mark.parametrize("name", cuda_programs.PROGRAMS)
def test_cuda_bindings(driver_host: Host, name: str) -> None:
    driver_host.program("cuda_programs", name)


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("0", "0"),
        ("1", "1"),
        ("1,0", "10"),
        ("1,7,0", "1"),
        ("0,0", "0"),
        ("GPU-5e1f0a70-0000-4000-8000-000000000001", "1"),
        ("GPU-5e1f0a70", "none"),
        ("", "none"),
        ("-1", "none"),
        ("all", "none"),
    ],
)
def test_visible_devices(driver_host: Host, visible: str, left: str) -> None:
    driver_host.program("cuda_programs", "visible_devices", left, CUDA_VISIBLE_DEVICES=visible)


def test_without_gpus(build_dir: Path, tmp_path: Path) -> None:
    nowhere = Host(tmp_path / "absent", build_dir=build_dir)
    nowhere.program("cuda_programs", "no_device")


def test_processes_share_one_pool_and_an_exit_frees_memory(driver_host: Host) -> None:
    watcher = driver_host.connect(0)
    first = start(driver_host, "hold", str(30 * GIB))
    second = start(driver_host, "hold", str(9 * GIB + 1))
    try:
        assert watcher.free_bytes() == GIB - 2 * MIB
        assert set(watcher.processes()) == {first.pid, second.pid}
        first.send_signal(signal.SIGKILL)
        first.wait()
        watcher.wait_for_free(31 * GIB - 2 * MIB)
    finally:
        for child in (first, second):
            child.kill()
            child.communicate()
    watcher.wait_for_free(40 * GIB)


def test_a_lost_gpu_answers_errors(driver_host: Host) -> None:
    child = start(driver_host, "lose_the_gpu")
    driver_host.fault("lose")
    child.communicate("lost\n")
    assert child.returncode == 0


def test_a_daemon_that_ends_is_a_lost_gpu(sim_dir: Path, build_dir: Path) -> None:
    host = Host(sim_dir, build_dir=build_dir)
    host.up()
    child = start(host, "lose_the_gpu")
    host.down()
    child.communicate("lost\n")
    assert child.returncode == 0


def test_an_unreachable_gpu_is_no_device(driver_host: Host, tmp_path: Path) -> None:
    """The library finds GPUs by their sockets: a directory with one socket is one GPU."""
    gpus = tmp_path / "gpus"
    gpus.mkdir()
    os.symlink(driver_host.socket(1), gpus / "1.sock")
    (gpus / "0.sock").write_text("not a socket")
    driver_host.program("cuda_programs", "visible_devices", "1", SIMGPU_DIR=str(tmp_path))
