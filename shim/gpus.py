"""Lists this machine's GPUs by NVML, and selects those that the user names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pynvml

from gpuslice.gpu import answers

_CONTEXT_DEADLINE_S: Final = 30


class GpuError(Exception):
    """A GPU does not exist, or no driver answers. The text names the request and the GPUs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU. `minor` is its device number on this machine."""

    uuid: str
    minor: int
    name: str
    memory_bytes: int


def present() -> Sequence[Gpu]:
    """Return all GPUs, in the driver's order."""
    with _nvml():
        return tuple(
            _describe(pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        )


def choose(gpus: Sequence[Gpu], wanted: Sequence[str]) -> Sequence[Gpu]:
    """Return the GPUs that `wanted` names by UUID or index, or all if `wanted` is empty."""
    if not gpus:
        raise GpuError("the driver reports no GPU")
    by_name = {str(index): gpu for index, gpu in enumerate(gpus)}
    by_name |= {gpu.uuid: gpu for gpu in gpus}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        there = ", ".join(f"{index} ({gpu.uuid})" for index, gpu in enumerate(gpus))
        raise GpuError(f"--gpu: invalid value {unknown[0]}: must be one of {there}")
    chosen: dict[str, Gpu] = {}
    for name in wanted:
        gpu = by_name[name]
        if gpu.uuid in chosen:
            raise GpuError(f"--gpu: duplicate value {name}: must be listed once")
        chosen[gpu.uuid] = gpu
    return [*chosen.values()] or gpus


def context_bytes(gpu: Gpu) -> int:
    """Return the GPU memory that a CUDA context takes, measured in a process started for it."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    command = [sys.executable, "-m", "gpuslice.gpu.context_size", gpu.uuid]
    try:
        done = subprocess.run(
            command,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONTEXT_DEADLINE_S,
        )
        if done.returncode != 0:
            raise GpuError((done.stderr.strip().splitlines() or ["no message"])[-1])
        return answers.context_bytes(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise GpuError(f"no answer in {_CONTEXT_DEADLINE_S} s") from error
    except answers.UnknownSizeError as error:
        raise GpuError(str(error)) from error


def _describe(handle: object) -> Gpu:
    return Gpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    )


@contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuError(
            f"no NVIDIA driver answers on this machine ({error}); "
            "to try without one, start the simulated driver: python -m simgpu up --help"
        ) from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver failed: {error}") from error
    finally:
        pynvml.nvmlShutdown()
