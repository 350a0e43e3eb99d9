"""A program's surroundings: an NVML that is absent, fails or is slow; no environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.contract import names
from shim import region
from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, MIB, Grants, Host

pytestmark = pytest.mark.sim

_TO_THE_LIMIT = f"""{CUDA}
free, total = must(d.cuMemGetInfo())
assert total == GIB, total
must(d.cuMemAlloc(free))
assert d.cuMemAlloc(1)[0] == OOM
print("limited")
"""

_NVML_STUB = """
#include <unistd.h>
#define SAY(name) int name(void) { STEP; return 999; }
SAY(nvmlInit_v2) SAY(nvmlInitWithFlags) SAY(nvmlDeviceGetHandleByIndex_v2) SAY(nvmlDeviceGetUUID)
SAY(nvmlDeviceGetMemoryInfo) SAY(nvmlDeviceGetMemoryInfo_v2) SAY(nvmlDeviceGetIndex)
SAY(nvmlDeviceGetComputeRunningProcesses_v3) SAY(nvmlShutdown)
"""


def _drivers(host: Host, directory: Path, step: str | None) -> Host:
    """The same host with another NVML; `step` None: with none at all."""
    directory.mkdir()
    shutil.copy(host.driver_dir / "libcuda.so.1", directory)
    if step is not None:
        source = directory / "stub.c"
        source.write_text(_NVML_STUB.replace("STEP", step))
        stub = directory / "libnvidia-ml.so.1"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", stub, source],
            check=True,
        )
    return Host(host.library, directory, host.sim_dir)


_STEPS = {"absent": None, "failing": "(void)0", "slow": "usleep(1000000)"}


@pytest.mark.parametrize("step", _STEPS.values(), ids=_STEPS.keys())
@pytest.mark.parametrize("by", ["grant", "environment"])
def test_row_44_limits_need_no_nvml(
    host: Host, grants: Grants, tmp_path: Path, step: str | None, by: str
) -> None:
    other = _drivers(host, tmp_path / "drivers", step)
    load = "import ctypes\n"
    if step is not None:
        load += """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
memory = (ctypes.c_uint64 * 8)()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetMemoryInfo(None, memory),
      nvml.nvmlDeviceGetComputeRunningProcesses_v3(None, ctypes.byref(ctypes.c_uint()), None))
assert not hasattr(nvml, "nvmlDeviceGetBAR1MemoryInfo"), "what NVML lacks, we do not add"
"""
    variables = {
        "grant": {},
        "environment": {
            names.ENV_MEMORY_LIMIT: "1g",
            names.ENV_SHARED_CACHE: str(tmp_path / "cache"),
        },
    }
    grant = grants.make(GIB) if by == "grant" else None
    done = other.python(load + _TO_THE_LIMIT, grant, variables=variables[by])
    answers = "" if step is None else "999 999 999\n"
    assert (done.stdout, done.stderr) == (f"{answers}limited\n", ""), done


# A container's root without a runtime: the machine's directories, its own /etc and /dev.
_CONTAINER = """
set -e
root=$1 grant=$2 library=$3 driver=$4 gpus=$5; shift 5
mount -t tmpfs none "$root"
for entry in /*; do
	case $entry in /etc | /dev | /proc) continue ;; esac
	if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"
	elif [ -d "$entry" ]; then mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"; fi
done
mkdir "$root/etc" "$root/dev" "$root/dev/simgpu" "$root/proc" "$root/.gpuslice" "$root/driver"
mount --rbind /proc "$root/proc"
for file in ld.so.cache passwd group nsswitch.conf; do cp "/etc/$file" "$root/etc/"; done
for node in null urandom; do
	touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"
done
mount --bind "$gpus" "$root/dev/simgpu"
mount --bind "$driver" "$root/driver"
mount --bind "$grant" "$root/.gpuslice"
echo /.gpuslice/libvgpu.so > "$root/etc/ld.so.preload"
exec chroot "$root" "$@"
"""


def _in_container(host: Host, grant: Path, root: Path, *command: str) -> str:
    root.mkdir(exist_ok=True)
    library = grant / "libvgpu.so"
    if not library.exists():
        shutil.copy(host.library, library)
    assert host.sim_dir is not None
    script = root.parent / "container.sh"
    script.write_text(_CONTAINER)
    unshare = ["unshare", "--mount", "--user", "--map-root-user"]
    paths = [root, grant, library, host.driver_dir, host.sim_dir / "gpus"]
    done = subprocess.run(
        [*unshare, "sh", script, *map(str, paths), *command],
        env={"PATH": os.environ["PATH"], names.ENV_MEMORY_LIMIT: "64g", names.ENV_DIR: "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


_BARE = """
import ctypes, os
assert not [name for name in os.environ if name.startswith(("LD_", "CUDA_", "GPUSLICE"))]
driver = ctypes.CDLL("/driver/libcuda.so.1")
assert driver.cuInit(0) == 0
total, context, pointer = ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
print(total.value, driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total.value + 1)))
"""

_LOOSE = ["env", f"{names.ENV_DIR}=/nowhere", f"{names.ENV_MEMORY_LIMIT}=0", "LD_PRELOAD="]
_SESSIONS = {
    "env -i": ["env", "-i", sys.executable, "-c", _BARE],
    "a new session, as ssh starts one": ["env", "-i", "setsid", "-w", sys.executable, "-c", _BARE],
    "a login shell": ["env", "-i", "sh", "-lc", 'exec "$0" -c "$1"', sys.executable, _BARE],
    "variables of its own": [*_LOOSE, sys.executable, "-c", _BARE.replace("not [", "[")],
}


@pytest.mark.shipped  # in an emptied environment a sanitizer has no options, nor its runtime
@pytest.mark.parametrize("command", _SESSIONS.values(), ids=_SESSIONS)
def test_row_46_any_environment_has_the_limit(
    host: Host, grants: Grants, tmp_path: Path, command: list[str]
) -> None:
    """The preload file and /.gpuslice suffice; the environment has no effect."""
    grant = grants.make(512 * MIB)
    assert _in_container(host, grant, tmp_path / "root", *command) == f"{512 * MIB} 2\n"
    assert region.status(grant)[0].use.refused_count == 1
