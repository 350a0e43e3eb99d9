"""The size of a context: real children that may answer, report wrong figures, fail or hang; and the
real child over a simulated driver, on GPUs that are free, full, lost, or missing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from gpuslice.gpu import answers, context_size, processes
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.record import FILE, Record
from nri_plugin.policy.model import Gpu
from tests.shim.conftest import GIB, GPUS, MIB, Host, gpu_host, library
from tests.support import Clock, until_async

__all__ = ["gpu_host", "library"]

GPU, OTHER = (uuid for uuid, _ in GPUS)


def contexts(
    script: str, *gpus: Gpu, clock: Clock | None = None, record: Record | None = None
) -> Contexts:
    inventory = Inventory(os.environ, record=record)
    inventory.seen, inventory.driver = gpus, "1"
    command = (sys.executable, "-c", script)
    now = clock or Clock()
    return Contexts(
        os.environ, inventory, deadline_s=60.0, min_interval_s=60.0, now=now, command=command
    )


def learn(asked: Contexts, *uuids: str) -> Mapping[str, int]:
    """Measure on these GPUs, each of a product of its own; return all that is known."""
    gpus = [Gpu(uuid, 0, GIB, model=f"model of {uuid}") for uuid in uuids]
    seen = asked.inventory.seen
    asked.inventory.seen = [*seen, *(gpu for gpu in gpus if gpu not in seen)]
    asyncio.run(asked.measure(gpus))
    return asked.sizes


A, SAME, OTHER_MODEL = (
    Gpu("GPU-1", 0, GIB, model="A"),
    Gpu("GPU-2", 1, GIB, model="A"),
    Gpu("GPU-3", 2, GIB, model="B"),
)


async def test_one_context_is_made_for_each_product(tmp_path: Path) -> None:
    """One at a time; and none for a GPU without a name."""
    log = tmp_path / "asked"
    script = (
        "import os, sys; assert os.environ['CUDA_VISIBLE_DEVICES'] == sys.argv[1]\n"
        f"assert not os.path.exists({str(tmp_path / 'other')!r})\n"
        f"open({str(tmp_path / 'other')!r}, 'x')\n"
        f"open({str(log)!r}, 'a').write(sys.argv[1] + ' '); print(len(sys.argv[1]))\n"
        f"os.unlink({str(tmp_path / 'other')!r})"
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
    await asked.measure([A, SAME])
    assert asked.sizes == {}
    clock.seconds += 60
    await asked.measure([A, SAME])
    assert asked.sizes == {"GPU-1": 7, "GPU-2": 7}


def over(host: Host, **more: str) -> Contexts:
    environment = {**host.environment(preload=False), **more}
    inventory = Inventory(environment)
    return Contexts(environment, inventory, deadline_s=60, min_interval_s=0, now=Clock())


def control(host: Host, **request: object) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(f"{host.sim_dir}/control.sock")
        daemon.sendall(json.dumps(request).encode() + b"\n")
        answer: dict[str, object] = json.loads(daemon.makefile().readline())
    assert "error" not in answer, answer
    return answer


def used(host: Host) -> list[int]:
    gpus = control(host, op="status")["gpus"]
    assert isinstance(gpus, list)
    return [gpu["used_bytes"] for gpu in gpus]


@contextmanager
def neighbour(host: Host, gpu: int) -> Iterator[None]:
    """A program that holds a context and 1 GiB of the GPU."""
    program = "from cuda.bindings import driver as d\nd.cuInit(0)\n"
    program += f"c = d.cuDevicePrimaryCtxRetain({gpu})[1]; d.cuCtxSetCurrent(c)\n"
    program += f"print(int(d.cuMemAlloc({GIB})[0]), flush=True); input()"
    environment = host.environment(preload=False)
    command = [sys.executable, "-c", program]
    holder = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "0\n"
        yield
    finally:
        holder.communicate("\n", timeout=60)


@pytest.mark.sim
def test_a_gpu_that_a_process_uses_is_left_alone(
    gpu_host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    asked = over(gpu_host)
    with neighbour(gpu_host, 0):
        assert learn(asked, GPU) == {}
        assert "another process uses the GPU" in caplog.text
        assert used(gpu_host) == [GIB + 300 * MIB, 0]
    both = {GPU: 300 * MIB, OTHER: 300 * MIB}
    assert learn(asked, GPU, OTHER) == both, "retried when it is free"
    assert used(gpu_host) == [0, 0]


@pytest.mark.sim
def test_without_a_driver(gpu_host: Host, tmp_path: Path) -> None:
    assert learn(over(gpu_host, LD_LIBRARY_PATH=str(tmp_path)), GPU) == {}
    assert learn(over(gpu_host, SIMGPU_DIR=str(tmp_path)), GPU) == {}


_LIES = {
    "nothing": ("[]", "does not list this process"),
    "not available": ("[Row(os.getpid(), None)]", "does not report the memory of processes"),
    "twice": ("[Row(os.getpid(), 300)] * 2", "does not report the memory of processes"),
    "more than all": ("[Row(os.getpid(), 1 << 29)]", "bytes for a context, of"),
}


@pytest.mark.sim
@pytest.mark.parametrize("lie", _LIES)
def test_implausible_figures_of_nvml_are_rejected(
    gpu_host: Host, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows, problem = _LIES[lie]
    script = (
        "import os, sys, pynvml\nfrom collections import namedtuple\n"
        "Row = namedtuple('Row', 'pid usedGpuMemory')\n"
        "from gpuslice.gpu import context_size\n"
        f"pynvml.nvmlDeviceGetComputeRunningProcesses = lambda GPU: {rows}\n"
        "sys.exit(context_size.main())"
    )
    asked = over(gpu_host)
    asked.command = (sys.executable, "-c", script)
    assert learn(asked, GPU) == {}
    assert problem in caplog.text


def test_a_gpu_of_one_process_at_a_time_is_left_to_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, answer in (
        ("nvmlInit", None),
        ("nvmlDeviceGetHandleByUUID", "handle"),
        ("nvmlDeviceGetComputeMode", pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS),
    ):
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(processes, "memory", lambda _: {})
    with pytest.raises(answers.UnknownSizeError, match="EXCLUSIVE_PROCESS"):
        context_size.measure("GPU-0")
