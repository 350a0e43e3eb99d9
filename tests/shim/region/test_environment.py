"""HAMi-core's variables set limits if there is no grant, and have no effect otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuslice.contract import names
from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host, gpu_table, simulated
from tests.shim.region.conftest import CACHE, CORE, INIT, LISTED, LOOK_NVML, MEMORY, Container

pytestmark = pytest.mark.sim

_GIBIBYTES = "1024m|1024M|1g|1G|1048576k|1048576K|1073741824|0001g"


@pytest.mark.parametrize("text", _GIBIBYTES.split("|"))
def test_row_01_every_way_to_write_a_gibibyte(container: Container, text: str) -> None:
    assert container.totals({MEMORY: text}) == [GIB, GIB]
    assert container.totals({MEMORY: text}, LOOK_NVML) == [GIB, GIB]


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


@pytest.mark.parametrize(
    ("said", "charged"),
    [({names.ENV_CONTEXT: "300m"}, 300), ({names.ENV_CONTEXT: "0"}, 0), ({}, 512)],
    ids=["said", "nothing", "assumed"],
)
def test_a_context_is_charged_the_size_in_the_environment(
    host: Host, tmp_path: Path, said: Mapping[str, str], charged: int
) -> None:
    program = CUDA + "free, total = must(d.cuMemGetInfo()); print((total - free) / MIB)"
    variables = {MEMORY: "1g", CACHE: str(tmp_path / "cache"), **said}
    assert float(host.python(program, variables=variables).stdout) == charged


def test_a_bad_size_of_contexts_is_refused_by_name(container: Container) -> None:
    said = container.refusal({MEMORY: "1g", names.ENV_CONTEXT: "300MiB"})
    rule = "must be bytes, or a number with k, m or g"
    assert said.endswith(f'environment {names.ENV_CONTEXT}: invalid value "300MiB": {rule}\n')


def test_what_is_refused_is_shown_in_one_short_line(container: Container) -> None:
    said = container.refusal({MEMORY: "1g\nfake; line\x1b[31m" + "x" * 1000})
    shown = r'environment CUDA_DEVICE_MEMORY_LIMIT: invalid value "[ -~]{40}\.\.\.": '
    assert re.fullmatch(rf"[^;\n]+: {shown}[^;\n]+\n", said)


def test_row_03_a_limit_of_its_own_comes_before_the_common_one(container: Container) -> None:
    assert container.totals({MEMORY: "1g", f"{MEMORY}_1": "512m"}) == [GIB, 512 * MIB]
    assert container.totals({f"{MEMORY}_1": "512m"}) == [GPUS[0][1], 512 * MIB]


_USE_EVERY_GPU = f"""{CUDA}
for ordinal in range({names.ENVIRONMENT_MAX_GPUS}):
    use(ordinal)
    assert must(d.cuMemGetInfo())[1] == (ordinal + 64) * MIB
    must(d.cuCtxDestroy(must(d.cuCtxCreate(None, 0, ordinal))))
    use(ordinal)
    must(d.cuMemFree(must(d.cuMemAlloc(MIB))))
    assert d.cuMemAlloc((ordinal + 64) * MIB + 1)[0] == OOM
"""


def test_row_03_more_than_sixteen_gpus(build_dir: Path, library: Path, tmp_path: Path) -> None:
    """HAMi-core's variables may limit 32 GPUs, twice as many as a grant."""
    places = range(names.ENVIRONMENT_MAX_GPUS)
    limits = [place + 64 for place in places]
    variables = {f"{MEMORY}_{gpu}": f"{limit}m" for gpu, limit in enumerate(limits)}
    gpus = [gpu_table(gpu, f"GPU-5e1f0a70-0000-4000-8000-{gpu:012x}", GIB) for gpu in places]
    with simulated(build_dir, library, tmp_path, gpus="".join(gpus)) as many_host:
        container = Container(many_host, tmp_path)
        assert container.totals(variables) == [limit * MIB for limit in limits]
        assert container.totals(variables, LOOK_NVML) == [limit * MIB for limit in limits]
        assert container.run(_USE_EVERY_GPU, variables).stderr == ""


def test_a_limit_of_zero_is_no_limit(container: Container) -> None:
    assert container.totals({MEMORY: "0"}) == [size for _, size in GPUS]
    assert not container.cache.exists(), "nothing is limited, so nothing is counted"
    of_the_second = {MEMORY: "1g", f"{MEMORY}_0": "0"}
    assert container.totals(of_the_second) == [GPUS[0][1], GIB]
    program = f"""{CUDA}
must(d.cuMemFree(must(d.cuMemAlloc(3 * GIB))))
use(1)
assert d.cuMemAlloc(GIB + 1)[0] == OOM
"""
    container.run(program, of_the_second)


def test_a_gpu_without_a_limit_is_the_drivers_on_every_path(container: Container) -> None:
    """Memory of a GPU without a limit is not charged or refunded, even beside a limited GPU."""
    program = f"""{CUDA}
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
    bare = container.run(program, {})
    beside = container.run(program, {f"{MEMORY}_1": "1g"})
    assert (beside.stdout, beside.stderr) == (bare.stdout, "")


def test_a_gpu_that_is_not_listed_has_no_memory(container: Container) -> None:
    assert container.totals({LISTED: GPUS[1][0], MEMORY: "1g"}) == [0, GIB]


_LOOSENING = (
    {MEMORY: "64g"},
    {MEMORY: "0"},
    {f"{MEMORY}_0": "64g", f"{MEMORY}_1": "64g"},
    {MEMORY: "1GB"},
    {CORE: "0"},
    {CORE: "junk"},
    {LISTED: "all"},
    {"CUDA_REDIRECT": "/nonexistent.so", "CUDA_DISABLE_CONTROL": "true"},
    {"GPU_CORE_UTILIZATION_POLICY": "disable", "ACTIVE_OOM_KILLER": "1"},
    {"CUDA_OVERSUBSCRIBE": "true", "CUDA_TASK_PRIORITY": "0"},
    {names.ENV_LOG_LEVEL: "0"},
)


@pytest.mark.parametrize("variables", _LOOSENING, ids=lambda it: "-".join(it))
def test_a_grant_outranks_every_variable(
    host: Host, grants: Grants, tmp_path: Path, variables: Mapping[str, str]
) -> None:
    container = Container(host, tmp_path, grants.make(GIB, 512 * MIB))
    assert container.totals(variables) == [GIB, 512 * MIB]
    assert container.totals(variables, LOOK_NVML) == [GIB, 512 * MIB]
    assert not container.cache.exists()


def test_a_silent_log_level_silences_the_one_line(container: Container) -> None:
    for level, lines in (("0", 0), ("1", 1), ("2", 1), ("4", 1), ("", 1), ("00", 1)):
        done = container.run(INIT, {MEMORY: "x", names.ENV_LOG_LEVEL: level})
        assert (done.stdout, done.stderr.count("\n")) == ("800\n", lines), level


def test_a_program_that_clears_its_environment_has_the_drivers_answers(null_host: Host) -> None:
    """libc has no list of variables at all after clearenv."""
    done = null_host.python("import ctypes\nctypes.CDLL(None).clearenv()\n" + INIT)
    assert (done.stdout, done.stderr) == ("0\n", "")
