"""A program over the driver that executes commands: `python -m tests.talker`.

It reads one command a line. Each answer is a line that begins with the driver's code. Addresses are
numbered in the order of allocation. The program uses only the driver's C interface.

    alloc BYTES            free N
    export N               code and the handle in hex
    open HANDLE [v1]       close N
    info                   code, free and total bytes
    fork                   0 and the pid of a child that does nothing
    stop STEP N            0; stop at that passage (only with the library built for tests)
    exit                   an orderly exit

With --unpausing, the kernel ends the program if the library would wait for another process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence

from tests import pauses


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class Talker:
    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._addresses: list[int] = []
        context = ctypes.c_void_p()
        for code in (
            self._cuda.cuInit(0),
            self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            self._cuda.cuCtxSetCurrent(context),
        ):
            if code:
                raise SystemExit(f"no context: {code}")

    def answer(self, words: Sequence[str]) -> str:
        """Execute a command by the method of its name, such as `_alloc`."""
        return str(getattr(self, f"_{words[0]}")(*words[1:]))

    def _keep(self, code: int, address: ctypes.c_uint64) -> str:
        if code:
            return str(code)
        self._addresses.append(address.value)
        return f"0 {len(self._addresses) - 1}"

    def _alloc(self, size: str) -> str:
        address = ctypes.c_uint64()
        return self._keep(
            self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(size))), address
        )

    def _free(self, number: str) -> str:
        return str(self._cuda.cuMemFree_v2(ctypes.c_uint64(self._addresses[int(number)])))

    def _export(self, number: str) -> str:
        handle = Handle()
        code = self._cuda.cuIpcGetMemHandle(
            ctypes.byref(handle), ctypes.c_uint64(self._addresses[int(number)])
        )
        return f"{code} {bytes(handle.bytes).hex()}"

    def _open(self, text: str, version: str = "v2") -> str:
        handle = Handle.from_buffer_copy(bytes.fromhex(text))
        address = ctypes.c_uint64()
        entry = {"v1": "cuIpcOpenMemHandle", "v2": "cuIpcOpenMemHandle_v2"}[version]
        return self._keep(getattr(self._cuda, entry)(ctypes.byref(address), handle, 1), address)

    def _close(self, number: str) -> str:
        return str(self._cuda.cuIpcCloseMemHandle(ctypes.c_uint64(self._addresses[int(number)])))

    def _info(self) -> str:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return f"{code} {free.value} {total.value}"

    def _fork(self) -> str:
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        return f"0 {child}"

    def _stop(self, step: str, passage: str) -> str:
        os.environ["VGPU_TEST_STOP"] = f"{step} {passage}"
        return "0"


def main(*options: str) -> None:
    if "--unpausing" in options:
        pauses.forbid()
    talker = Talker()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "exit":
            return
        sys.stdout.write(talker.answer(line.split()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
