"""`python -m tests.gpu.facts GPU`: facts that this machine's driver reports of one GPU, as JSON.

It must run as a process of its own without the library, because it creates a context to measure it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pynvml

from tests.support import run
from traces.watch import used_bytes


class GpuError(Exception):
    """The GPU is absent, or its driver does not answer. The text is the driver's."""


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


def of(gpu: int, environment: Mapping[str, str]) -> Facts:
    """Return the facts of a GPU. Raises GpuError if the GPU cannot be used."""
    done = run(sys.executable, "-m", "tests.gpu.facts", str(gpu), env=environment)
    if done.returncode:
        raise GpuError(f"GPU {gpu}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    return Facts(**json.loads(done.stdout))


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
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        raise SystemExit(f"NVML: {error}") from None
    facts = Facts(
        uuid=uuid,
        name=pynvml.nvmlDeviceGetName(handle),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        context_bytes=_context_bytes(uuid, handle),
        driver_version=pynvml.nvmlSystemGetDriverVersion(),
        cuda_version=pynvml.nvmlSystemGetCudaDriverVersion(),
    )
    sys.stdout.write(json.dumps(asdict(facts)))


if __name__ == "__main__":
    main(*sys.argv[1:])
