"""`python -m tests.gpu.facts GPU`: facts that this machine's driver reports of one GPU, as JSON.

Runs as a process of its own, without the library: it creates a context, to measure one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pynvml

from tests.support import run
from traces.watch import used_bytes


class GpuError(Exception):
    """The GPU is absent, or its driver does not answer; the text is the driver's."""


@dataclass(frozen=True)
class Facts:
    uuid: str
    name: str
    minor: int
    total_bytes: int
    free_bytes: int
    context_bytes: int
    driver_version: str
    cuda_version: int
    driver_dir: str


def of(gpu: int, environment: Mapping[str, str]) -> Facts:
    """Raises GpuError if the GPU cannot be used."""
    done = run(sys.executable, "-m", "tests.gpu.facts", str(gpu), env=environment)
    if done.returncode:
        raise GpuError(f"GPU {gpu}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    return Facts(**json.loads(done.stdout))


def _text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def _context_bytes(uuid: str, handle: object) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    from cuda.bindings import driver

    before = used_bytes(handle)
    for code, *_ in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(0)):
        if code != driver.CUresult.CUDA_SUCCESS:
            raise SystemExit(f"no context: {code.name}")
    return max(used_bytes(handle) - before, 0)


def main(gpu: str) -> None:
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(gpu))
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        raise SystemExit(f"NVML: {error}") from None
    context_bytes = _context_bytes(uuid, handle)
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    facts = Facts(
        uuid=uuid,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        context_bytes=context_bytes,
        driver_version=_text(pynvml.nvmlSystemGetDriverVersion()),
        cuda_version=pynvml.nvmlSystemGetCudaDriverVersion(),
        driver_dir=next(
            str(Path(each).parent) for each in loaded if Path(each).name.startswith("libcuda.so")
        ),
    )
    sys.stdout.write(json.dumps(asdict(facts)))


if __name__ == "__main__":
    main(*sys.argv[1:])
