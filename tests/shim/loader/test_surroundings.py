"""A program's surroundings: NVML is absent, fails or is slow, or the environment is empty."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import names
from shim import region
from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.drivers import build

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
_USE_NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
memory = (ctypes.c_uint64 * 8)()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetMemoryInfo(None, memory),
      nvml.nvmlDeviceGetComputeRunningProcesses_v3(None, ctypes.byref(ctypes.c_uint()), None))
assert not hasattr(nvml, "nvmlDeviceGetBAR1MemoryInfo"), "what NVML lacks, we do not add"
"""
_STEPS = {"absent": None, "failing": "(void)0", "slow": "usleep(1000000)"}


@pytest.mark.parametrize("step", _STEPS.values(), ids=_STEPS.keys())
@pytest.mark.parametrize("by", ["grant", "environment"])
def test_row_44_limits_need_no_nvml(
    host: Host, grants: Grants, tmp_path: Path, step: str | None, by: str
) -> None:
    """step: the C code with which each function of NVML begins, or None if there is no NVML."""
    drivers = tmp_path / "drivers"
    drivers.mkdir()
    shutil.copy(host.driver_dir / "libcuda.so.1", drivers)
    program, answers = _TO_THE_LIMIT, "limited\n"
    if step is not None:
        soname = "libnvidia-ml.so.1"
        text = _NVML_STUB.replace("STEP", step)
        build(tmp_path / "nvml.so", text, f"-Wl,-soname,{soname}").rename(drivers / soname)
        program, answers = _USE_NVML + program, f"999 999 999\n{answers}"
    cache = str(tmp_path / "cache")
    limit = {
        "grant": {names.ENV_DIR: str(grants.make(GIB))},
        "environment": {names.ENV_MEMORY_LIMIT: "1g", names.ENV_SHARED_CACHE: cache},
    }
    done = replace(host, driver_dir=drivers).python(program, variables=limit[by])
    assert (done.stdout, done.stderr) == (answers, ""), done


# Make a container's root: the machine's directories, but another /etc and /dev.
_CONTAINER = """
set -e
root=$1 grant=$2 driver=$3 gpus=$4; shift 4
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
    "a new session, as ssh starts one": ["env", "-i", "setsid", "-w", sys.executable, "-c", _BARE],
    "a login shell": ["env", "-i", "sh", "-lc", 'exec "$0" -c "$1"', sys.executable, _BARE],
    "variables of its own": [*_LOOSE, sys.executable, "-c", _BARE.replace("not [", "[")],
}


@pytest.mark.shipped  # a sanitizer needs variables
@pytest.mark.parametrize("command", _SESSIONS.values(), ids=_SESSIONS)
def test_row_46_any_environment_has_the_limit(
    host: Host, grants: Grants, tmp_path: Path, command: list[str]
) -> None:
    """The preload file and /.gpuslice suffice for the limit, whatever the environment."""
    grant, root, script = grants.make(512 * MIB), tmp_path / "root", tmp_path / "container.sh"
    root.mkdir()
    script.write_text(_CONTAINER)
    shutil.copy(host.library, grant / "libvgpu.so")
    assert host.sim_dir is not None
    paths = [script, root, grant, host.driver_dir, host.sim_dir / "gpus"]
    done = host.run(
        ["unshare", "--mount", "--user", "--map-root-user", "sh", *paths, *command],
        preload=False,
        variables={names.ENV_MEMORY_LIMIT: "64g", names.ENV_DIR: "/nowhere"},
    )
    assert done.stdout == f"{512 * MIB} 2\n"
    assert region.status(grant)[0].use.refused_count == 1
