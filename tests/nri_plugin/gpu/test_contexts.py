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
from types import SimpleNamespace

import pynvml
import pytest

from gpu import answers, context_size
from nri_plugin.gpu.contexts import Contexts
from tests.shim.conftest import GIB, GPUS, MIB, Host, gpu_host, library, simulated
from tests.support import Clock

__all__ = ["gpu_host", "library"]

GPU, OTHER = (uuid for uuid, _ in GPUS)


def contexts(script: str, clock: Clock | None = None, deadline_s: float = 60.0) -> Contexts:
    return Contexts(
        os.environ,
        deadline_s=deadline_s,
        min_interval_s=30.0,
        now=clock or Clock(),
        command=(sys.executable, "-c", script),
    )


def learn(looked_for: Contexts, *uuids: str) -> Mapping[str, int]:
    async def work() -> None:
        looked_for.measure(uuids)
        await looked_for.settled()
        await looked_for.close()

    asyncio.run(work())
    return looked_for.sizes


async def test_each_gpu_is_measured_once_by_its_uuid(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    script = (
        f"import os, sys; assert os.environ['CUDA_VISIBLE_DEVICES'] == sys.argv[1]\n"
        f"open({str(log)!r}, 'a').write(sys.argv[1] + ' '); print(len(sys.argv[1]))"
    )
    clock = Clock()
    asked = contexts(script, clock)
    asked.measure(["GPU-1", "GPU-1"])
    asked.measure(["GPU-1"])
    assert asked.sizes == {}, "no request waits"
    await asked.settled()
    clock.seconds += 3600
    asked.measure(["GPU-1", "GPU-22"])
    await asked.settled()
    assert asked.sizes == {"GPU-1": 5, "GPU-22": 6}
    await asked.close()
    assert log.read_text().split() == ["GPU-1", "GPU-22"]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.exit('first\\nNVML: Driver Not Loaded')", "NVML: Driver Not Loaded"),
        ("import os; os.abort()", "no message"),
        ("print('about 300')", "unreadable answer"),
        ("", "unreadable answer"),
        ("print(0)", "0 bytes for a context: implausible"),
        ("print(-5)", "-5 bytes for a context: implausible"),
        (f"print({GIB} + 1)", "implausible"),
        (f"print({1 << 64} - 1)", "implausible"),
    ],
)
async def test_a_failed_measurement_is_logged_once_and_repeated(
    script: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    asked = contexts(script, clock)
    for _ in range(3):
        asked.measure(["GPU-1"])
        asked.measure(["GPU-1"])
        await asked.settled()
        clock.seconds += 30
    assert asked.sizes == {}
    asked._children["GPU-1"].command = (sys.executable, "-c", "print(7)")
    clock.seconds -= 1
    asked.measure(["GPU-1"])
    await asked.settled()
    assert asked.sizes == {}, "not yet"
    clock.seconds += 1
    asked.measure(["GPU-1"])
    await asked.settled()
    assert asked.sizes == {"GPU-1": 7}
    assert [problem in line for line in caplog.messages if "unknown" in line] == [True]


def over(host: Host, **more: str) -> Contexts:
    environment = {**host.environment(preload=False), **more}
    return Contexts(environment, deadline_s=60, min_interval_s=0, now=Clock())


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
def test_measuring_a_context_leaves_no_memory_in_use(gpu_host: Host) -> None:
    assert learn(over(gpu_host), GPU, OTHER) == {GPU: 300 * MIB, OTHER: 300 * MIB}
    assert used(gpu_host) == [0, 0]


@pytest.mark.sim
def test_a_neighbours_memory_is_not_the_contexts(gpu_host: Host) -> None:
    with neighbour(gpu_host, 0):
        assert learn(over(gpu_host), GPU) == {GPU: 300 * MIB}
        assert used(gpu_host) == [GIB + 300 * MIB, 0]


@pytest.mark.sim
def test_a_gpu_that_is_full_is_left_alone(gpu_host: Host, caplog: pytest.LogCaptureFixture) -> None:
    asked = over(gpu_host)
    with neighbour(gpu_host, 1):
        assert learn(asked, OTHER) == {}
        assert "bytes of the GPU are free" in caplog.text
    assert learn(asked, OTHER) == {OTHER: 300 * MIB}, "retried when there is room"


@pytest.mark.sim
def test_a_gpu_that_is_lost(gpu_host: Host, caplog: pytest.LogCaptureFixture) -> None:
    asked = over(gpu_host)
    control(gpu_host, op="lose", gpu=0)
    try:
        assert learn(asked, GPU, OTHER) == {OTHER: 300 * MIB}
    finally:
        control(gpu_host, op="restore", gpu=0)
    assert f"context size unknown gpu={GPU}" in caplog.text
    assert learn(asked, GPU) == {GPU: 300 * MIB, OTHER: 300 * MIB}


@pytest.mark.sim
def test_contexts_that_cost_nothing_are_unknown(
    build_dir: Path, library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if NVML does not report processes: a figure of zero is rejected."""
    with simulated(build_dir, library, tmp_path) as host:
        assert learn(over(host), GPU) == {}
    assert "0 bytes for a context: implausible" in caplog.text


@pytest.mark.sim
def test_without_libcuda(gpu_host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NVML answers, and there is no CUDA: for example on a GPU for graphics alone."""
    nvml = "libnvidia-ml.so.1"
    (tmp_path / nvml).symlink_to(gpu_host.driver_dir / nvml)
    assert learn(over(gpu_host, LD_LIBRARY_PATH=str(tmp_path)), GPU) == {}
    assert "libcuda.so.1" in caplog.text


@pytest.mark.sim
def test_without_a_driver(gpu_host: Host, tmp_path: Path) -> None:
    assert learn(over(gpu_host, LD_LIBRARY_PATH=str(tmp_path)), GPU) == {}
    assert learn(over(gpu_host, SIMGPU_DIR=str(tmp_path)), GPU) == {}


_LIES = {
    "nothing": ("[]", "does not list this process"),
    "another process": ("[Row(1, 300)]", "does not list this process"),
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
        f"pynvml.nvmlDeviceGetComputeRunningProcesses = lambda GPU: {rows}\n"
        "from gpu import context_size\nsys.exit(context_size.main())"
    )
    asked = over(gpu_host)
    asked._command = (sys.executable, "-c", script)
    assert learn(asked, GPU) == {}
    assert problem in caplog.text


def test_a_gpu_of_one_process_at_a_time_is_left_to_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = SimpleNamespace(free=80 << 30)
    for name, answer in (
        ("nvmlInit", None),
        ("nvmlDeviceGetHandleByUUID", "handle"),
        ("nvmlDeviceGetMemoryInfo", memory),
        ("nvmlDeviceGetComputeMode", pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS),
    ):
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    with pytest.raises(answers.UnknownSizeError, match="EXCLUSIVE_PROCESS"):
        context_size.measure("GPU-0")
