"""GPUs for replays and benchmarks: a simulated GPU, on which contexts and code take as much memory
as in the recordings, and the GPUs of drivers that return at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuslice.contract import grant_file, names
from shim import region

ROOT: Final = Path(__file__).resolve().parents[1]
UUID: Final = "GPU-5e1f0a70-0000-4000-8000-00000000007c"
_NULL_UUID: Final = "GPU-6e756c6c-0000-4000-8000-000000000000"
CONTEXT_BYTES: Final = 300 * 2**20
MODULE_BYTES: Final = 2 * 2**20

BUILD: Final = ROOT / "build" / "dev"
LIBRARY: Final = BUILD / "lib" / "libvgpu.so"
# Kernels take no time. So each CUDA event that a call found complete in the recording is complete
# in the replay. The newest architecture allows kernels the most shared memory.
_CONFIG: Final = f"""
driver_version = "580.65.06"
cuda_version = 13000
launch_default_ns = 1
context_overhead = "{CONTEXT_BYTES}"
module_overhead = "{MODULE_BYTES}"
granule = "2Mi"
[[gpu]]
name = "NVIDIA SimGPU"
uuid = "{UUID}"
minor = 0
pci_bus = 1
capability_major = 9
memory = "{{memory_bytes}}"
"""


def program(name: str) -> Path:
    """Return a built program's path. Raise FileNotFoundError, which names the build command."""
    path = BUILD / "bin" / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not built; run `make build`")
    return path


@contextmanager
def simulated(directory: Path, memory_bytes: int) -> Iterator[Mapping[str, str]]:
    """Simulate a GPU, with files in `directory`. Yield the environment for programs that use it."""
    config, sim = directory / "host.toml", directory / "sim"
    config.write_text(_CONFIG.format(memory_bytes=memory_bytes))
    command = [sys.executable, "-m", "simgpu"]

    def run(*arguments: str | Path) -> None:
        done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"simgpu {arguments[0]}: {done.stderr.strip()}")

    run("up", "--dir", sim, "--config", config)
    try:
        yield {**base(), "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu"), "SIMGPU_DIR": str(sim)}
    finally:
        run("down", "--dir", sim)


@contextmanager
def granted(
    driver: str = "null", limit_bytes: int = 32 << 30, context_bytes: int = 0
) -> Iterator[Mapping[str, str]]:
    """Yield the environment for programs that use this driver, with a grant of its one GPU."""
    with tempfile.TemporaryDirectory(dir=region.parent(os.environ)) as name:
        gpu = grant_file.Gpu(_NULL_UUID, limit_bytes, 100, 0, context_bytes=context_bytes)
        region.create(Path(name), [gpu])
        yield {**base(), "LD_LIBRARY_PATH": str(BUILD / "lib" / driver), names.ENV_DIR: name}


def base() -> Mapping[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
