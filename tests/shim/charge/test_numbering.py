"""The limit belongs to a physical GPU, however a program numbers its GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, MIB, Host, gpu_table, simulated

pytestmark = pytest.mark.sim

# Minor numbers, bus addresses and speeds order the GPUs in three different ways.
A, B, C = (f"GPU-5e1f0a70-0000-4000-8000-0000000000{letter}" for letter in ("a1", "b2", "c3"))
INSTANCE = "MIG-11111111-2222-4333-8444-555555555555"
LIMIT = {A: 1 * GIB, B: 2 * GIB, C: 3 * GIB}
PLACES = {"pci_bus": (30, 10, 20), "multiprocessors": (100, 50, 150)}
BY_BUS, BY_SPEED = [B, C, A], [C, A, B]

_SHOW = f"""{CUDA}
for ordinal in range(must(d.cuDeviceGetCount())):
    use(ordinal)
    uuid = bytes(must(d.cuDeviceGetUuid(ordinal)).bytes).hex()
    total = must(d.cuDeviceTotalMem(ordinal))
    assert must(d.cuMemGetInfo())[1] == total
    assert d.cuMemAlloc(total + 1)[0] == OOM
    must(d.cuMemFree(must(d.cuMemAlloc(total // 2))))
    print("cuda", uuid, total)
"""
_SHOW_NVML = f"""{NVML}
for index in range(pynvml.nvmlDeviceGetCount()):
    uuid = pynvml.nvmlDeviceGetUUID(gpu(index)).split("-", 1)[1].replace("-", "")
    print("nvml", uuid, pynvml.nvmlDeviceGetMemoryInfo(gpu(index)).total)
"""
_BOTH = (_SHOW + _SHOW_NVML, _SHOW_NVML + _SHOW)


@pytest.fixture(scope="module")
def three(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    gpus = "".join(
        gpu_table(minor, uuid, 8 * GIB, **{key: each[minor] for key, each in PLACES.items()})
        for minor, uuid in enumerate(LIMIT)
    )
    with simulated(build_dir, library, tmp_path_factory.mktemp("three"), gpus=gpus) as host:
        yield host


def _lines(kind: str, uuids: Sequence[str]) -> list[str]:
    return [f"{kind} {uuid[4:].replace('-', '')} {LIMIT[uuid]}" for uuid in uuids]


@pytest.mark.parametrize(
    ("order", "gpus"), [("", BY_SPEED), ("FASTEST_FIRST", BY_SPEED), ("PCI_BUS_ID", BY_BUS)]
)
def test_row_27_the_limit_follows_the_physical_gpu(
    three: Host, tmp_path: Path, order: str, gpus: Sequence[str]
) -> None:
    """CUDA's variables permute and select GPUs. They do not change NVML's order."""
    limits = enumerate(LIMIT.items())
    region.create(tmp_path, [grant_file.Gpu(*limit, 100, minor) for minor, limit in limits])
    variables = {"CUDA_DEVICE_ORDER": order} if order else {}

    def shown(program: str) -> list[str]:
        lines = three.python(program, tmp_path, variables=variables).stdout.splitlines()
        return sorted(lines, key=lambda line: line.split()[0])

    for program in _BOTH:
        assert shown(program) == _lines("cuda", gpus) + _lines("nvml", BY_BUS)
    for chosen in ([1, 0, 2], [2, 1, 0], [2], [1, 2]):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, chosen))
        assert shown(_SHOW) == _lines("cuda", [gpus[index] for index in chosen])


@pytest.mark.parametrize(
    ("listed", "numbered"), [(f"{C},{A},{B}", [C, A, B]), ("all", BY_BUS)], ids=["listed", "all"]
)
def test_row_27_the_environments_limits_follow_it_too(
    three: Host, tmp_path: Path, listed: str, numbered: Sequence[str]
) -> None:
    cache = str(tmp_path / "cache")
    variables = {"NVIDIA_VISIBLE_DEVICES": listed, "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache}
    for number, uuid in enumerate(numbered):
        variables[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = str(LIMIT[uuid])
    wanted = _lines("cuda", BY_SPEED) + _lines("nvml", BY_BUS)
    for program in _BOTH:
        shown = three.python(program, variables=variables).stdout.splitlines()
        assert sorted(shown) == sorted(wanted)


_SHOW_MIG = f"""{CUDA}{NVML}
total = must(d.cuDeviceTotalMem(0))
assert must(d.cuMemGetInfo())[1] == total and d.cuMemAlloc(total + 1)[0] == OOM
must(d.cuMemAlloc(total // 2))
instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)
assert pynvml.nvmlDeviceIsMigDeviceHandle(instance)
print(total)
for handle in (gpu(0), instance):
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    print(memory.total, memory.used >= memory.total // 2 > 0)
"""


@pytest.fixture(scope="module")
def mig(build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with GPU A in MIG mode, which has one instance, and GPU B without MIG."""
    gpus = gpu_table(0, A, 8 * GIB, mig_uuid=f'"{INSTANCE}"') + gpu_table(1, B, 8 * GIB)
    with simulated(build_dir, library, tmp_path_factory.mktemp("mig"), gpus=gpus) as host:
        yield host


@pytest.mark.parametrize("named", [A, INSTANCE], ids=["the GPU", "the instance"])
@pytest.mark.parametrize("visible", [None, "0", INSTANCE, A], ids=str)
def test_row_27_a_mig_instance_has_the_limit_of_the_grant(
    mig: Host, tmp_path: Path, named: str, visible: str | None
) -> None:
    """A grant may name a MIG instance or a GPU. A GPU's instances share the GPU's limit."""
    region.create(tmp_path, [grant_file.Gpu(named, 512 * MIB, 100, 0)])
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    done = mig.python(_SHOW_MIG, tmp_path, variables=variables)
    limited = f"{512 * MIB} True"
    whole = limited if named == A else "0 False"
    assert done.stdout.splitlines() == [str(512 * MIB), whole, limited], done
