"""PyTorch, CuPy and vLLM under a limit: alone, two tenants of one GPU, and two that start together.

Every program sees its limit as the GPU's memory, gets all of it and then its usual error, and
computes correct results. The charge is compared with NVML's figures for its processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gpuslice.contract.overhead import CODE_BYTES
from tests.gpu import facts
from tests.gpu.account import BLOCK
from tests.gpu.conftest import GpuHost, machine
from tests.gpu.frameworks import FRAMEWORKS, Framework
from tests.gpu.tenants import MEASURED_AFTER_S, Tenant, tenant
from traces.watch import Watch

pytestmark = [pytest.mark.sim, pytest.mark.timeout(900)]
Record = Callable[[str, object], None]


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest, this_gpu: facts.Facts) -> Framework:
    wanted: Framework = request.param
    if wanted.version() is None:
        pytest.skip(wanted.missing)
    if this_gpu.free_bytes < 2 * wanted.limit_bytes:
        pytest.skip(f"needs {2 * wanted.limit_bytes} bytes free, has {this_gpu.free_bytes}")
    return wanted


@pytest.fixture
def watch(this_gpu: facts.Facts) -> Iterator[Watch]:
    with Watch(this_gpu.uuid, machine()) as looking:
        yield looking


@contextmanager
def tenants(
    count: int, framework: Framework, gpu: facts.Facts, build_dir: Path, directory: Path
) -> Iterator[list[Tenant]]:
    host = GpuHost(build_dir / "lib" / "libvgpu.so", Path(gpu.driver_dir), uuid=gpu.uuid)
    with ExitStack() as stack:
        yield [
            stack.enter_context(tenant(framework, host, gpu, directory / f"tenant{number}"))
            for number in range(count)
        ]


def assert_filled(it: Tenant, framework: Framework) -> None:
    said = it.answer("filled")
    assert said["total_bytes"] == framework.limit_bytes
    assert isinstance(said["filled_bytes"], int)
    assert framework.limit_bytes // 4 < said["filled_bytes"] <= framework.limit_bytes


def assert_charged(it: Tenant, watch: Watch, record: Record, about: str) -> None:
    """NVML's figure is charged, plus an allowance for code, and is within the limit."""
    charge = it.charge(watch)
    record("figure", f"{about}: {charge}")
    nearly = max(2 * BLOCK, charge.seen // 50)
    assert -nearly <= charge.charged - charge.seen <= nearly + CODE_BYTES, charge
    assert charge.charged <= charge.limit, charge


@pytest.mark.parametrize("how", ["alone", "one after the other", "together"])
def test_a_framework_gets_its_limit_and_no_more(
    framework: Framework,
    this_gpu: facts.Facts,
    watch: Watch,
    build_dir: Path,
    tmp_path: Path,
    record_property: Record,
    how: str,
) -> None:
    """`together`: all contexts are created at the same time, and all later phases coincide."""
    count = 1 if how == "alone" else 2
    with tenants(count, framework, this_gpu, build_dir, tmp_path) as all_of_them:
        for it in all_of_them:
            it.answer("started")
        for group in [all_of_them] if how == "together" else [[it] for it in all_of_them]:
            for it in group:
                it.go_on()
            for it in group:
                assert_filled(it, framework)
        time.sleep(MEASURED_AFTER_S)
        for number, it in enumerate(all_of_them):
            assert_charged(it, watch, record_property, f"tenant {number}")
        for it in all_of_them:
            it.go_on()
        for it in all_of_them:
            it.end()
