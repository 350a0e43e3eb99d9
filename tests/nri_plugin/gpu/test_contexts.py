"""The size of a context, from stand-ins for the child and from the real one over simgpu."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pynvml
import pytest

from gpuslice.gpu import answers, context_size, processes
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.record import FILE, Record
from nri_plugin.policy.model import Gpu
from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, GPUS, MIB, Host, gpu_host, library
from tests.shim.exact import WATCH
from tests.support import Clock, until_async

__all__ = ["gpu_host", "library"]

A, SAME, OTHER_MODEL = (
    Gpu("GPU-1", 0, GIB, model="A"),
    Gpu("GPU-2", 1, GIB, model="A"),
    Gpu("GPU-3", 2, GIB, model="B"),
)


def contexts(
    script: str, *gpus: Gpu, clock: Clock | None = None, record: Record | None = None
) -> Contexts:
    inventory = Inventory(os.environ, record=record)
    inventory.seen, inventory.driver = gpus, "1"
    command, now = (sys.executable, "-c", script), clock or Clock()
    return Contexts(os.environ, inventory, 60.0, min_interval_s=60.0, now=now, command=command)


async def test_one_context_is_made_for_each_product(tmp_path: Path) -> None:
    """The contexts are made one at a time, and none for a GPU without a name."""
    log, other = tmp_path / "asked", str(tmp_path / "other")
    script = (
        "import os, sys; assert os.environ['CUDA_VISIBLE_DEVICES'] == sys.argv[1]\n"
        f"open({other!r}, 'x')\n"
        f"open({str(log)!r}, 'a').write(sys.argv[1] + ' '); print(len(sys.argv[1]))\n"
        f"os.unlink({other!r})"
    )
    clock = Clock()
    gpus = [A, SAME, OTHER_MODEL, Gpu("GPU-4", 3, GIB)]
    asked = contexts(script, *gpus, clock=clock)
    assert asked.sizes == {}
    await asked.measure(gpus)
    clock.seconds += 3600
    await asked.measure(gpus)
    assert asked.sizes == {"GPU-1": 5, "GPU-2": 5, "GPU-3": 5}
    assert log.read_text().split() == ["GPU-1", "GPU-3"]


async def test_a_size_outlasts_the_agent_and_not_the_drivers_version(tmp_path: Path) -> None:
    record = Record(tmp_path, "boot")
    record.begin()
    await contexts("print(7)", A, record=record).measure([A])
    await until_async(lambda: "1 A" in (tmp_path / FILE).read_text())
    again = contexts("raise SystemExit('measured again')", A, record=Record(tmp_path, "boot"))
    assert again.sizes == {"GPU-1": 7}
    again.inventory.driver = "2"
    assert again.sizes == {}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.exit('first\\nNVML: Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("import os; os.abort()", "killed by signal 6"),
        ("import sys; sys.exit(3)", "exited with status 3 and no message"),
        ("print('about 300')", "unreadable answer"),
        ("print(0)", "0 bytes for a context: implausible"),
        (f"print({GIB} + 1)", "implausible"),
    ],
)
async def test_a_failed_measurement_is_logged_once_and_repeated(
    script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    asked = contexts(script, A, clock=clock)
    for _ in range(3):
        await asked.measure([A])
        await asked.measure([A])
        clock.seconds += 60
    assert asked.sizes == {}
    asked._children["GPU-1"].command = (sys.executable, "-c", "print(7)")
    clock.seconds -= 1
    await asked.measure([A])
    assert asked.sizes == {}, "not yet"
    clock.seconds += 1
    await asked.measure([A])
    assert asked.sizes == {"GPU-1": 7}
    assert [problem in line for line in caplog.messages if "unknown" in line] == [True]


async def test_after_a_failure_another_gpu_of_the_product_is_tried() -> None:
    clock = Clock()
    script = "import sys; sys.exit('busy') if sys.argv[1] == 'GPU-1' else print(7)"
    asked = contexts(script, A, SAME, clock=clock)
    for later_s, sizes in ((0, {}), (60, {"GPU-1": 7, "GPU-2": 7})):
        clock.seconds += later_s
        await asked.measure([A, SAME])
        assert asked.sizes == sizes


def over(host: Host) -> Contexts:
    environment = host.environment(preload=False)
    inventory = Inventory(environment)
    inventory.seen = [Gpu(uuid, 0, GIB, model=f"model of {uuid}") for uuid, _ in GPUS]
    return Contexts(environment, inventory, deadline_s=60, min_interval_s=0, now=Clock())


def learn(asked: Contexts, gpus: int = 1) -> Mapping[str, int]:
    """Measure on this number of GPUs, each of another product. Return all known sizes."""
    asyncio.run(asked.measure(asked.inventory.seen[:gpus]))
    return asked.sizes


def used(host: Host) -> str:
    return host.python(WATCH + "print(held(0), held(1))", preload=False).stdout.strip()


@pytest.mark.sim
def test_a_gpu_in_use_is_left_alone(gpu_host: Host, caplog: pytest.LogCaptureFixture) -> None:
    asked = over(gpu_host)
    with gpu_host.serving(CUDA + "address = must(d.cuMemAlloc(GIB))\n", preload=False):
        assert learn(asked) == {}
        assert "another process uses the GPU" in caplog.text
        assert used(gpu_host) == f"{GIB + 300 * MIB} 0"
    both = {uuid: 300 * MIB for uuid, _ in GPUS}
    assert learn(asked, 2) == both, "retried when it is free"
    assert used(gpu_host) == "0 0"


LIES = {
    "nothing": ("[]", "does not list this process"),
    "not available": ("[Row(os.getpid(), None)]", "does not report the memory of processes"),
    "twice": ("[Row(os.getpid(), 300)] * 2", "does not report the memory of processes"),
    "more than all": ("[Row(os.getpid(), 1 << 29)]", "bytes for a context, of"),
}


@pytest.mark.sim
@pytest.mark.parametrize(("rows", "problem"), LIES.values(), ids=LIES)
def test_implausible_figures_of_nvml_are_rejected(
    gpu_host: Host, rows: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = (
        "import os, sys, pynvml\nfrom collections import namedtuple\n"
        "Row = namedtuple('Row', 'pid usedGpuMemory')\n"
        "from gpuslice.gpu import context_size\n"
        f"pynvml.nvmlDeviceGetComputeRunningProcesses = lambda GPU: {rows}\n"
        "sys.exit(context_size.main())"
    )
    asked = over(gpu_host)
    asked.command = (sys.executable, "-c", script)
    assert learn(asked) == {}
    assert problem in caplog.text


def test_a_gpu_of_one_process_at_a_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in (
        ("nvmlInit", None),
        ("nvmlDeviceGetHandleByUUID", "handle"),
        ("nvmlDeviceGetComputeMode", pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS),
    ):
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(processes, "memory", lambda _: {})
    with pytest.raises(answers.UnknownSizeError, match="EXCLUSIVE_PROCESS"):
        context_size.measure("GPU-0")
