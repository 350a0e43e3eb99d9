"""HAMi-core's variables: limits if no grant sets them, and no effect if one does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from contract import names, region_file
from tests.shim.clients import CUDA, NVML, OBEY
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host
from tests.shim.drivers import build
from tests.talking import talking

pytestmark = pytest.mark.sim

MEMORY, CORE, CACHE = names.ENV_MEMORY_LIMIT, names.ENV_CORE_LIMIT, names.ENV_SHARED_CACHE
LISTED = names.ENV_VISIBLE_DEVICES

# cuInit's result, then each GPU's figures, by CUDA and, in NVML's order, by NVML.
_LOOK = """
import ctypes
driver, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
def totals():
    count = ctypes.c_int()
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    for ordinal in range(count.value):
        assert driver.cuDeviceTotalMem_v2(ctypes.byref(size), ordinal) == 0
        yield size.value
print(driver.cuInit(0))
print(*totals())
"""
_LOOK_NVML = (
    NVML
    + """
print(*(pynvml.nvmlDeviceGetMemoryInfo(gpu(i)).total for i in range(pynvml.nvmlDeviceGetCount())))
"""
)


class Container:
    """Programs with these variables, and a cache file of their own."""

    def __init__(self, host: Host, directory: Path, grant: Path | None = None) -> None:
        self.host, self.cache, self.grant = host, directory / "cache", grant

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """On a host whose contexts cost nothing."""
        mine = {CACHE: str(self.cache), names.ENV_CONTEXT: "0"}
        return {**self.host.environment(self.grant), **mine, **variables}

    def run(self, program: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        environment = self.environment(variables)
        return self.host.run([sys.executable, "-c", program], self.grant, variables=environment)

    def totals(self, variables: Mapping[str, str], program: str = _LOOK) -> list[int]:
        done = self.run(program, variables)
        assert done.stderr == "", done
        lines = done.stdout.splitlines()
        assert lines[:-1] in ([], ["0"]), done
        return [int(number) for number in lines[-1].split()]

    def refusal(self, variables: Mapping[str, str]) -> str:
        """The one line that it prints if cuInit is refused and the program continues."""
        done = self.run(_LOOK.split("print(*")[0] + 'print("alive")', variables)
        assert done.stdout == f"{800}\nalive\n", done
        assert done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def container(host: Host, tmp_path: Path) -> Container:
    return Container(host, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["1024m", "1024M", "1g", "1G", "1048576k", "1048576K", "1073741824", "0001g"],
)
def test_row_01_every_way_to_write_a_gibibyte(container: Container, text: str) -> None:
    assert container.totals({MEMORY: text}) == [GIB, GIB]
    assert container.totals({MEMORY: text}, _LOOK_NVML) == [GIB, GIB]


_BAD = (
    "1Gi|1GB|1.5g|-1||abc|0x|999999999999g|0x400m|1gg|1 g| 1g|1g |+1g|g|1t|9223372036854775808|"
    "18446744073709551616|1e9|1g,2g|\uff11g"
)


@pytest.mark.parametrize("text", _BAD.split("|"))
def test_row_02_a_bad_value_is_refused_by_name(container: Container, text: str) -> None:
    for name in (MEMORY, f"{MEMORY}_1"):
        said = container.refusal({name: text})
        value = text if text.isascii() else "???g"
        assert said == (
            f'gpuslice: no GPU for this process: environment {name}: invalid value "{value}":'
            " must be bytes, a number with k, m or g, or 0 for no limit\n"
        )
    assert not container.cache.exists()


_FREE = (
    CUDA
    + """
free, total = must(d.cuMemGetInfo())
print(total - free)
"""
)


@pytest.mark.parametrize(
    ("variables", "charged"),
    [
        ({names.ENV_CONTEXT: "300m"}, 300 * MIB),
        ({names.ENV_CONTEXT: "0"}, 0),
        ({}, 512 * MIB),
    ],
    ids=["said", "nothing", "assumed"],
)
def test_a_context_is_charged_the_size_in_the_environment(
    container: Container, variables: Mapping[str, str], charged: int
) -> None:
    said = container.host.python(
        _FREE, variables={MEMORY: "1g", CACHE: str(container.cache), **variables}
    )
    assert int(said.stdout) == charged


def test_a_bad_size_of_contexts_is_refused_by_name(container: Container) -> None:
    said = container.refusal({MEMORY: "1g", names.ENV_CONTEXT: "300MiB"})
    rule = "must be bytes, or a number with k, m or g"
    assert said.endswith(f'environment {names.ENV_CONTEXT}: invalid value "300MiB": {rule}\n')


@pytest.mark.parametrize("text", ["", "101", "-1", "50%", "1g", "abc", "0x10", "1.0"])
def test_a_bad_share_is_refused_by_name(container: Container, text: str) -> None:
    rule = "must be a whole number, 0 (no limit) to 100"
    for name, more in ((CORE, {}), (f"{CORE}_0", {MEMORY: "1g"})):
        said = container.refusal({name: text, **more})
        assert said.endswith(f'environment {name}: invalid value "{text}": {rule}\n')


@pytest.mark.parametrize("suffix", ["_", "_x", "_32", "_-1", "_01", "_1_0", "_99999999999"])
def test_a_limit_for_no_gpu_is_refused(container: Container, suffix: str) -> None:
    rule = "LIMIT_ must be followed by the number of a GPU, 0 to 31"
    for name, value in ((MEMORY, "1g"), (CORE, "50"), (CORE, "101")):
        said = container.refusal({name + suffix: value})
        assert said.endswith(f"environment {name}{suffix}: invalid name: {rule}\n")


def test_what_is_refused_is_shown_in_one_short_line(container: Container) -> None:
    said = container.refusal({MEMORY: "1g\nfake; line\x1b[31m" + "x" * 1000})
    shown = r'environment CUDA_DEVICE_MEMORY_LIMIT: invalid value "[ -~]{40}\.\.\.": '
    assert re.fullmatch(rf"[^;\n]+: {shown}[^;\n]+\n", said)


def test_row_03_a_limit_of_its_own_comes_before_the_common_one(container: Container) -> None:
    assert container.totals({MEMORY: "1g", f"{MEMORY}_1": "512m"}) == [GIB, 512 * MIB]
    assert container.totals({f"{MEMORY}_1": "512m"}) == [GPUS[0][1], 512 * MIB]


_USE_EVERY_GPU = (
    CUDA
    + f"""
for ordinal in range({names.MOST_GPUS}):
    use(ordinal)
    assert must(d.cuMemGetInfo())[1] == (ordinal + 64) * MIB
    must(d.cuCtxDestroy(must(d.cuCtxCreate(None, 0, ordinal))))
    use(ordinal)
    must(d.cuMemFree(must(d.cuMemAlloc(MIB))))
    assert d.cuMemAlloc((ordinal + 64) * MIB + 1)[0] == OOM
"""
)


def test_row_03_more_than_sixteen_gpus(many_host: Host, tmp_path: Path) -> None:
    container = Container(many_host, tmp_path)
    variables = {f"{MEMORY}_{gpu}": f"{gpu + 64}m" for gpu in range(names.MOST_GPUS)}
    wanted = [(gpu + 64) * MIB for gpu in range(names.MOST_GPUS)]
    assert container.totals(variables) == wanted
    assert container.totals(variables, _LOOK_NVML) == wanted
    done = container.run(_USE_EVERY_GPU, variables)
    assert done.stderr == ""


def test_a_limit_of_zero_is_no_limit(container: Container) -> None:
    bare = [size for _, size in GPUS]
    assert container.totals({MEMORY: "0"}) == bare
    assert not container.cache.exists(), "nothing is limited, so nothing is counted"
    assert container.totals({MEMORY: "1g", f"{MEMORY}_0": "0"}) == [bare[0], GIB]
    container.run(
        CUDA
        + """
must(d.cuMemFree(must(d.cuMemAlloc(3 * GIB))))
use(1)
assert d.cuMemAlloc(GIB + 1)[0] == OOM
""",
        {MEMORY: "1g", f"{MEMORY}_0": "0"},
    )


def test_a_gpu_without_a_limit_is_the_drivers_on_every_path(container: Container) -> None:
    """Beside a limited GPU: nothing is charged, and frees of uncharged memory refund nothing."""
    program = (
        CUDA
        + """
must(d.cuMemFreeAsync(must(d.cuMemAllocAsync(64 * MIB, 0)), 0))
must(d.cuStreamSynchronize(0))
must(d.cuMemFree(must(d.cuMemAllocManaged(8 * MIB, 1))))
must(d.cuMemFree(must(d.cuMemAllocPitch(1000, 100, 4))[0]))
shape = d.CUDA_ARRAY_DESCRIPTOR()
shape.Width = shape.Height = 1024
shape.Format, shape.NumChannels = d.CUarray_format.CU_AD_FORMAT_FLOAT, 1
must(d.cuArrayDestroy(must(d.cuArrayCreate(shape))))
must(d.cuDevicePrimaryCtxReset(0))
use(0)
place = d.CUmemAllocationProp()
place.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
place.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
must(d.cuMemRelease(must(d.cuMemCreate(2 * MIB, place, 0))))
held = must(d.cuMemAlloc(3 * GIB))
print(must(d.cuMemGetInfo()))
"""
    )
    bare = container.run(program, {})
    beside = container.run(program, {f"{MEMORY}_1": "1g"})
    assert (beside.stdout, beside.stderr) == (bare.stdout, "")


def test_what_was_bound_beside_a_gpu_without_a_limit_is_refunded(container: Container) -> None:
    program = (
        CUDA
        + """
use(1)
before = must(d.cuMemGetInfo())
wanted = d.CUmulticastObjectProp()
wanted.numDevices, wanted.size = 1, 8 * MIB
made = must(d.cuMulticastCreate(wanted))
must(d.cuMulticastAddDevice(made, 1))
place = d.CUmemAllocationProp()
place.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
place.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
place.location.id = 1
memory = must(d.cuMemCreate(2 * MIB, place, 0))
must(d.cuMulticastBindMem(made, 0, memory, 0, 2 * MIB, 0))
must(d.cuMemRelease(memory))
assert must(d.cuMemGetInfo()) != before
must(d.cuMulticastUnbind(made, 1, 0, 2 * MIB))
assert must(d.cuMemGetInfo()) == before
"""
    )
    done = container.run(program, {f"{MEMORY}_1": "1g"})
    assert done.stderr == ""


def test_a_share_alone_limits_no_memory(container: Container) -> None:
    assert container.totals({CORE: "50"}) == [size for _, size in GPUS]


@pytest.mark.parametrize("listed", ["all", "0,1", "void", "none", "GPU-5e1f0a70,0", "GPU-zz"])
def test_a_list_without_uuids_has_no_effect(container: Container, listed: str) -> None:
    variables = {LISTED: listed, f"{MEMORY}_0": "512m", f"{MEMORY}_1": "1g"}
    assert container.totals(variables) == [512 * MIB, GIB]


def test_a_gpu_that_is_not_listed_has_no_memory(container: Container) -> None:
    assert container.totals({LISTED: GPUS[1][0], MEMORY: "1g"}) == [0, GIB]


def test_processes_share_one_limit_and_children_agree(container: Container) -> None:
    container.run(
        CUDA
        + """
import os, subprocess, sys
held = must(d.cuMemAlloc(GIB // 2))
child = open("/proc/self/cmdline").read().split(chr(0))[2].split("import os")[0] + '''
free, total = must(d.cuMemGetInfo())
assert total == GIB and free <= GIB // 2, (free, total)
assert d.cuMemAlloc(GIB // 2 + 1)[0] == OOM
'''
looser = {**os.environ, "CUDA_DEVICE_MEMORY_LIMIT": "4g"}
for environment in (os.environ, looser):
    subprocess.run([sys.executable, "-c", child], env=environment, check=True)
""",
        {MEMORY: "1g"},
    )


def test_the_first_process_sets_the_limit_until_the_last_exits(container: Container) -> None:
    assert container.totals({MEMORY: "1g"}) == [GIB, GIB]
    assert container.totals({MEMORY: "2g"}) == [2 * GIB, 2 * GIB], "no process was left"
    program = _LOOK.split("print(driver")[0] + "assert driver.cuInit(0) == 0\n" + OBEY
    with talking([sys.executable, "-c", program], container.environment({MEMORY: "1g"})):
        assert container.totals({MEMORY: "2g"})[0] == GIB, "initialised, and asked for nothing yet"
        assert container.totals({MEMORY: "512m"})[0] == GIB
    assert container.totals({MEMORY: "512m"})[0] == 512 * MIB


def test_the_file_is_created_complete_once_and_for_all_users(container: Container) -> None:
    environment = container.environment({MEMORY: "1g"})
    program = "import os; os.umask(0o77)\n" + CUDA + "assert os.umask(0o77) == 0o77\n"
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert os.listdir(container.cache.parent) == ["cache"], "no draft is left"
    assert container.cache.stat().st_mode & 0o777 == 0o666
    geometry = region_file.Geometry(names.MOST_GPUS)
    assert container.cache.stat().st_size == geometry.file_bytes
    assert container.cache.stat().st_blocks * 512 >= geometry.file_bytes, "backed by the disk"


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x0e\xfa\x2f\x01".ljust(2_008_953, b"\0")])
def test_another_programs_file_is_refused_and_left_alone(
    container: Container, content: bytes
) -> None:
    """HAMi-core's own region, of 2,008,953 bytes, may be there."""
    container.cache.write_bytes(content)
    said = container.refusal({MEMORY: "1g"})
    why = "damaged, another program's, or of another version of this library"
    assert f"{why}: {container.cache}; remove it, or name another" in said
    assert container.cache.read_bytes() == content


def test_a_place_where_no_file_can_be_made_is_refused(container: Container) -> None:
    for path, why in (("/nonexistent/cache", ": No such file"), ("", CACHE), ("x" * 250, CACHE)):
        said = container.refusal({MEMORY: "1g", CACHE: path})
        assert "cannot be made or opened: " in said and why in said


def test_a_full_disk_refuses_at_the_start_and_keeps_no_half_of_a_file(
    container: Container, tmp_path: Path
) -> None:
    program = _LOOK.split("print(*")[0] + f"import os; print(os.listdir({str(tmp_path)!r}))"
    small = 'mount -t tmpfs -o size=1m none "$0"; exec "$@"'
    unshare = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", small]
    done = subprocess.run(
        [*unshare, tmp_path, sys.executable, "-c", program],
        env=container.environment({MEMORY: "1g"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "800\n[]\n", done
    assert f"cannot be made or opened: {container.cache}: No space left on device; " in done.stderr


# --- with a grant, the environment is ignored ---

_LOOSENING = (
    {MEMORY: "64g"},
    {MEMORY: "0"},
    {f"{MEMORY}_0": "64g", f"{MEMORY}_1": "64g"},
    {MEMORY: "1GB"},
    {CORE: "0"},
    {CORE: "junk"},
    {LISTED: "all"},
    {"CUDA_REDIRECT": "/nonexistent.so"},
    {"CUDA_DISABLE_CONTROL": "true"},
    {"GPU_CORE_UTILIZATION_POLICY": "disable"},
    {"ACTIVE_OOM_KILLER": "1"},
    {"CUDA_OVERSUBSCRIBE": "true"},
    {"CUDA_TASK_PRIORITY": "0"},
    {names.ENV_LOG_LEVEL: "0"},
)


@pytest.mark.parametrize("variables", _LOOSENING, ids=lambda it: "-".join(it))
def test_a_grant_outranks_every_variable(
    host: Host, grants: Grants, tmp_path: Path, variables: Mapping[str, str]
) -> None:
    container = Container(host, tmp_path, grants.make(GIB, 512 * MIB))
    assert container.totals(variables) == [GIB, 512 * MIB]
    assert container.totals(variables, _LOOK_NVML) == [GIB, 512 * MIB]
    assert not container.cache.exists()


def test_no_variable_switches_a_limit_of_the_environment_off(container: Container) -> None:
    for more in ({"CUDA_REDIRECT": "/nonexistent.so"}, {"CUDA_DISABLE_CONTROL": "true"}):
        assert container.totals({MEMORY: "1g", **more}) == [GIB, GIB]


def test_a_silent_log_level_silences_the_one_line(container: Container) -> None:
    for level, lines in (("0", 0), ("1", 1), ("2", 1), ("4", 1), ("", 1), ("00", 1)):
        done = container.run(_LOOK.split("print(*")[0], {MEMORY: "x", names.ENV_LOG_LEVEL: level})
        assert (done.stdout, done.stderr.count("\n")) == ("800\n", lines), level


def test_a_program_that_clears_its_environment_has_the_drivers_answers(null_host: Host) -> None:
    """clearenv leaves not an empty list of variables, but none."""
    program = 'import ctypes; ctypes.CDLL(None).clearenv(); driver = ctypes.CDLL("libcuda.so.1")\n'
    done = null_host.python(program + "print(driver.cuInit(0))")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_setuid_program_creates_no_file_at_its_users_path(
    null_host: Host, tmp_path: Path
) -> None:
    """A file writable by all, made by root at a path of a user's choice, would make the user root.

    If the container's file exists already, the program shares it.
    """
    cache = tmp_path / "cache"
    source = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/auxv.h>
int cuInit(unsigned);
int main(int argc, char **argv) {
    if (!dlopen(argv[argc - 1], RTLD_NOW)) return 1;
    printf("%lu %d", getauxval(AT_SECURE), cuInit(0));
    return 0;
}
"""
    found = f"-Wl,-rpath,{null_host.library.parent}"
    program = build(tmp_path / "program", source, null_host.library, found)
    try:
        os.chown(program, -1, os.getegid() + 1)
    except PermissionError:
        pytest.skip("only root can give a program another group")
    environment = {MEMORY: "1g", CACHE: str(cache)}

    def said() -> str:
        command = [program, null_host.driver_dir / "libcuda.so.1"]
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    program.chmod(0o2755)
    assert said() == "1 800"
    assert not cache.exists()
    program.chmod(0o755)
    assert said() == "0 0"
    assert cache.exists()
    program.chmod(0o2755)
    assert said() == "1 0"
