"""Memory limits of control groups, from driver 615 on: NVML, nvidia-smi and what programs get."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from lab.node import cgroups
from simgpu.control_groups import ControlGroups
from simgpu.limits import Limit, Limits
from simgpu.wire import Status
from tests.simgpu.host import PLAIN, Host
from tests.simgpu.test_gpus import gpu_of, refused

MIB = 1 << 20
CALLS = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


def test_the_nearest_limited_group_counts() -> None:
    gpu = gpu_of(context_overhead_bytes=1024)
    gpu.limits.set("/c/pod", Limit(0, 64 << 10))
    gpu.limits.set("/c/pod/leaf", Limit(0, 32 << 10))
    leaf, below, beside, other = (
        gpu.join(pid, group)
        for pid, group in enumerate(("/c/pod/leaf", "/c/pod/leaf/x", "/c/pod/two", "/c/podded"))
    )
    gpu.context_create(leaf)
    gpu.memory_alloc(below, 0, 31 << 10)
    assert gpu.memory("/c/pod/leaf/y") == (32 << 10, 0)
    with refused(Status.OUT_OF_MEMORY):
        gpu.memory_alloc(leaf, 0, 1)
    gpu.memory_alloc(beside, 0, 64 << 10)
    with refused(Status.OUT_OF_MEMORY):
        gpu.context_create(beside)
    gpu.memory_alloc(other, 0, 128 << 10)
    assert gpu.limit("/c/pod/leaf") == (0, 32 << 10, 32 << 10)
    assert gpu.limit("/c/other") == (0, 2**64 - 1, 128 << 10)
    gpu.limits.set("/c/pod/leaf", Limit())
    assert gpu.limit("/c/pod/leaf") == (0, 64 << 10, 96 << 10)
    assert gpu.memory("/c/pod") == (64 << 10, 0)


def test_memory_of_an_exited_process_counts_until_its_teardown() -> None:
    gpu = gpu_of(teardown_delay_s=1.0)
    gpu.limits.set("/c", Limit(0, 4096))
    gpu.memory_alloc(client := gpu.join(1, "/c"), 0, 4096)
    gpu.leave(client, 0)
    assert gpu.memory("/c") == (4096, 0)
    gpu.tick(10**9)
    assert gpu.memory("/c") == (4096, 4096)


def test_a_group_needs_dmem_files_where_the_kernel_has_the_controller(tmp_path: Path) -> None:
    group = tmp_path / "pod"
    group.mkdir()
    groups = ControlGroups(tmp_path)
    assert groups.may_have_limit(str(group))
    assert not groups.may_have_limit(f"{group}/../pod")
    assert not groups.may_have_limit(f"{group}/absent")
    (tmp_path / "dmem.capacity").touch()
    assert not groups.may_have_limit(str(group))
    (group / "dmem.max").touch()
    assert groups.may_have_limit(str(group))
    assert Limits().nearest("/any") == ""


def test_the_calls_structs_are_those_of_nvidias_client() -> None:
    source = '#include "abi/nvml_abi.h"\n' + "".join(
        f'_Static_assert(sizeof({name}) == {ctypes.sizeof(of)}, "");\n'
        for name, of in (
            ("nvmlSetMemoryLimits_v1_t", pynvml.c_nvmlSetMemoryLimits_v1_t),
            ("nvmlGetMemoryLimits_v1_t", pynvml.c_nvmlGetMemoryLimits_v1_t),
        )
    )
    command = ["gcc", "-fsyntax-only", "-Isimgpu/src", "-xc", "-"]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def group() -> Iterator[Path]:
    made = cgroups.HIERARCHY / f"sim-{os.getpid()}"
    made.mkdir()
    yield made
    assert cgroups.remove(made.name, 10)


@pytest.fixture
def new_host(build_dir: Path, tmp_path: Path) -> Iterator[Host]:
    """A host of driver 615."""
    config = tmp_path / "host.toml"
    config.write_text(
        f'{PLAIN.read_text()}\ncuda_version = 13040\ndriver_version = "615.71.01"\n'
        f'cgroup_root = "{cgroups.HIERARCHY}"\n'
    )
    with tempfile.TemporaryDirectory(prefix="sim-") as base:
        host = Host(Path(base, "d"), options=("--config", config), build_dir=build_dir)
        host.up()
        yield host
        host.down()


def _environment(host: Host) -> dict[str, str]:
    return {**host.env(), "LD_LIBRARY_PATH": str(host.build_dir / "lib/simgpu-13040")}


def _run(host: Host, *command: str | Path, group: Path | None = None) -> str:
    inside = cgroups.into(group) if group else []
    done = subprocess.run(
        [*inside, *map(str, command)], env=_environment(host), text=True, capture_output=True
    )
    return done.stdout + done.stderr + (f"status {done.returncode}" if done.returncode else "")


_TAKES = """
import ctypes, pynvml
cuda = ctypes.CDLL("libcuda.so.1")
free, total, at = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
def info():
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value >> 20, total.value >> 20
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(
    pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2)
print(info(), memory.total >> 20, memory.free >> 20)
print(cuda.cuMemAlloc_v2(ctypes.byref(at), 1000 << 20), info())
print(*(cuda.cuMemAlloc_v2(ctypes.byref(at), mib << 20) for mib in (26, 24)))
"""


@pytest.mark.sim
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")
def test_a_program_gets_its_groups_limit(new_host: Host, group: Path) -> None:
    smi = new_host.build_dir / "bin/nvidia-smi"
    name = ("memory-limits", "--get", "-n", group, "-i", "0")
    assert _run(new_host, smi, *name) == "GPU 0: soft limit 0 MiB, hard limit none, used 0 MiB\n"
    limits = ("--soft-limit", "0", "--hard-limit", "1024")
    said = _run(new_host, smi, "memory-limits", "--set", "-n", group, "-i", "0", *limits)
    assert said == "GPU 0: soft limit 0 MiB, hard limit 1024 MiB, used 0 MiB\n"
    said = _run(new_host, sys.executable, "-c", _TAKES, group=group)
    assert said == "(1024, 1024) 1024 1024\n0 (24, 1024)\n2 0\n"
    said = _run(new_host, sys.executable, "-c", _TAKES)
    assert said.startswith("(40960, 40960) 40960 40960\n")
    other = ("memory-limits", "--get", "-n", group, "-i", "1")
    assert "hard limit none" in _run(new_host, smi, *other)
    group.rmdir()
    group.mkdir()
    assert "hard limit none" in _run(new_host, smi, *name)


@pytest.mark.sim
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")
def test_a_limit_is_refused(new_host: Host, group: Path) -> None:
    smi = new_host.build_dir / "bin/nvidia-smi"
    asked = ("memory-limits", "--set", "--soft-limit", "0", "--hard-limit", "9", "-n")
    assert "Not Found" in _run(new_host, smi, *asked, f"{group}/absent")
    assert "Not Found" in _run(new_host, smi, *asked, "/tmp")
    for weak in (
        ("setpriv", "--bounding-set=-sys_admin"),
        ("unshare", "--user", "--map-root-user"),
    ):
        assert "Insufficient Permissions" in _run(new_host, *weak, smi, *asked, group)
    assert "required" in _run(new_host, smi, *asked)
    old = {**new_host.env(), "LD_LIBRARY_PATH": str(new_host.build_dir / "lib/simgpu")}
    done = subprocess.run([smi, *asked, group], env=old, text=True, capture_output=True)
    assert "Function Not Found" in done.stdout
