"""The program inside the demo's pods: NVIDIA's own Python packages and nothing of ours.

    probe.py report        the figures of NVML and CUDA for GPU 0, as JSON
    probe.py serve         runs, holding the GPU; executes the verbs of `ask`
    probe.py ask VERB      fill: allocate all that is reported free, then one byte more
                           work: write, copy and read back a buffer of 64 MiB
                           free: free everything

It runs alone in a container: it imports nothing of the lab.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Final

import pynvml
from cuda.bindings import driver

_SOCKET: Final = "/tmp/probe.sock"
_WORK_BYTES: Final = 64 << 20
_PATTERN: Final = 0xA5
_CONNECT_S: Final = 20.0


def _cuda(answer: tuple[Any, ...]) -> Any:
    """The values after the result code; any code but success ends the program with a message."""
    code, *values = answer
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)


class Holder:
    """Holds GPU 0's primary context, and the memory allocated through it."""

    def __init__(self) -> None:
        _cuda(driver.cuInit(0))
        device = _cuda(driver.cuDeviceGet(0))
        self._device = device
        _cuda(driver.cuCtxSetCurrent(_cuda(driver.cuDevicePrimaryCtxRetain(device))))
        self._held: list[Any] = []

    def report(self) -> dict[str, Any]:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        free, total = _cuda(driver.cuMemGetInfo())
        return {
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "nvml_total": int(memory.total),
            "nvml_free": int(memory.free),
            "cuda_total": int(_cuda(driver.cuDeviceTotalMem(self._device))),
            "cuda_free": int(free),
            "cuda_info_total": int(total),
            "gpus": int(_cuda(driver.cuDeviceGetCount())),
        }

    def fill(self) -> dict[str, Any]:
        free, _ = _cuda(driver.cuMemGetInfo())
        code, pointer = driver.cuMemAlloc(int(free))
        if code == driver.CUresult.CUDA_SUCCESS:
            self._held.append(pointer)
        more, pointer = driver.cuMemAlloc(1)
        if more == driver.CUresult.CUDA_SUCCESS:
            self._held.append(pointer)
        return {"asked": int(free), "code": code.name, "one_more": more.name}

    def work(self) -> dict[str, Any]:
        pointer = _cuda(driver.cuMemAlloc(_WORK_BYTES))
        _cuda(driver.cuMemsetD8(pointer, _PATTERN, _WORK_BYTES))
        back = bytearray(_WORK_BYTES)
        _cuda(driver.cuMemcpyDtoH(back, pointer, _WORK_BYTES))
        _cuda(driver.cuMemFree(pointer))
        return {"right": back == bytes([_PATTERN]) * _WORK_BYTES, "bytes": _WORK_BYTES}

    def free(self) -> dict[str, Any]:
        while self._held:
            _cuda(driver.cuMemFree(self._held.pop()))
        return {}


def _serve() -> None:
    holder = Holder()
    verbs = {verb.__name__: verb for verb in (holder.report, holder.fill, holder.work, holder.free)}
    fresh = f"{_SOCKET}.{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(fresh)
        listening.listen()
        os.rename(fresh, _SOCKET)
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw") as stream:
                try:
                    answer = verbs[stream.readline().strip()]()
                except RuntimeError as error:
                    answer = {"error": str(error)}
                stream.write(json.dumps(answer) + "\n")


def _report() -> dict[str, Any]:
    try:
        return Holder().report()
    except RuntimeError as error:
        return {"error": str(error)}


def _ask(verb: str) -> str:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(_SOCKET)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                continue
            with connection.makefile("rw") as stream:
                stream.write(f"{verb}\n")
                stream.flush()
                return stream.readline()


def main() -> int:
    match sys.argv[1:]:
        case ["report"]:
            sys.stdout.write(json.dumps(_report()) + "\n")
        case ["serve"]:
            _serve()
        case ["ask", verb]:
            sys.stdout.write(_ask(verb))
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
