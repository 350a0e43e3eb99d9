"""Records what a libcuda or a libnvidia-ml returns on a machine without a GPU.

    python -m tests.simgpu.driver.ask cuda|nvml < NAMES

The program loads the library that LD_LIBRARY_PATH finds, calls it, and prints a JSON document.
NAMES are additional names for cuGetProcAddress, one per line. Each function is called twice: with
zeros, and with pointers to zeroed memory at fixed addresses. A child process makes the calls. If a
call crashes, another child makes the rest.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tests.support import run

RELEASES: Final = (
    *(2000, 2010, 2020, 2030, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050, 7000),
    *(7050, 8000, 9000, 9010, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040),
    *(11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090),
    *(13000, 13010, 13020, 13030),
)
VERSIONS: Final = tuple(sorted((0, 1999, 3019, *RELEASES, 14000, 2**31 - 1)))
_NVML_ERRORS: Final = range(-1, 1001)
_ARGUMENTS: Final = 16
_POINTED_AT: Final = 0x20000000
_POINTED_BYTES: Final = 0x10000
_UNTOUCHED: Final = 0x5A5A5A5A
_DEADLINE_S: Final = 20
_MAP_FIXED_NOREPLACE: Final = 0x100000
_ENTRY: Final = re.compile(r"(cu(?!dbg)|nvml(?!ErrorString$))")
"""Functions that return a code. nvmlErrorString and the debugger's symbols cudbg* do not."""
_NOT_FOUND: Final = "0/2/null"


def _exports(library: str) -> list[str]:
    """Return the names of the library's functions that return a code."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = [Path(line.split(maxsplit=5)[-1]) for line in maps]
    file = next(path for path in paths if path.name.startswith(library))
    listed = run("nm", "-D", "--defined-only", file, check=True)
    names = {line.split()[2].split("@")[0] for line in listed.stdout.splitlines()}
    return sorted(name for name in names if _ENTRY.match(name))


def _map_zeros(address: int) -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
    place = ctypes.CDLL(None).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    got = place(address, _POINTED_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if got != address:
        raise OSError(f"no memory at {address:#x}")


def _in_children(calls: Sequence[Callable[[], int]]) -> Iterator[str]:
    """Yield each call's code, or the name of the signal that ended the call."""
    done = 0
    while done < len(calls):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            silent = os.open(os.devnull, os.O_RDWR)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            for call in calls[done:]:
                signal.alarm(_DEADLINE_S)
                os.write(writing, b"%d\n" % call())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            codes = lines.read().split()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        yield from codes
        done += len(codes)
        if done < len(calls):
            yield signal.Signals(-status).name if status < 0 else f"exit {status}"
            done += 1


def _calls(library: ctypes.CDLL, names: Sequence[str]) -> dict[str, str]:
    addresses = [_POINTED_AT + i * _POINTED_BYTES for i in range(_ARGUMENTS)]
    for address in addresses:
        _map_zeros(address)

    def call(name: str, arguments: Sequence[int]) -> Callable[[], int]:
        function = getattr(library, name)
        function.argtypes = [ctypes.c_uint64] * _ARGUMENTS
        return lambda: int(function(*arguments))

    zeros = _in_children([call(name, [0] * _ARGUMENTS) for name in names])
    pointers = _in_children([call(name, addresses) for name in names])
    return {
        name: f"{first} {second}"
        for name, first, second in zip(names, zeros, pointers, strict=True)
    }


def _row(base: str, answers: Sequence[str]) -> str:
    """Return pairs `version answer`, one for each version at which the answer changes. If the only
    change is that the symbol `base` is found, return only its version."""
    runs = groupby(zip(VERSIONS, answers, strict=True), key=lambda pair: pair[1])
    row = " ".join(f"{next(run)[0]} {answer}" for answer, run in runs)
    itself = re.fullmatch(rf"0 {_NOT_FOUND} (\d+) {base}", row)
    return itself[1] if itself else row


def _resolved(library: ctypes.CDLL, names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return cuGetProcAddress's answers at all versions, by name and flags. Leave out names that
    are never found. Leave out flags 1 and 2 where they equal 0, and flags 3 where they equal 2."""
    symbols = {ctypes.cast(getattr(library, each), ctypes.c_void_p).value: each for each in known}

    def answer(name: str, version: int, flags: int) -> str:
        """Return the found symbol, or `code/pointer` if none of the known symbols was found."""
        found = ctypes.c_void_p(_UNTOUCHED)
        where = ctypes.byref(found), version, ctypes.c_uint64(flags)
        code = library.cuGetProcAddress(name.encode(), *where)
        if not code and found.value in symbols:
            return symbols[found.value]
        return _NOT_FOUND if (code, found.value) == (500, _UNTOUCHED) else f"{code}/{found.value}"

    rows: dict[str, str] = {}
    for name in names:
        at_flags = [[answer(name, version, flags) for version in VERSIONS] for flags in range(4)]
        if {*at_flags[0]} == {_NOT_FOUND}:
            continue
        rows[name] = _row(name, at_flags[0])
        for flags, like in ((1, 0), (2, 0), (3, 2)):
            if at_flags[flags] != at_flags[like]:
                rows[f"{name} flags={flags}"] = _row(name, at_flags[flags])
    return rows


def ask_cuda(more_names: Sequence[str]) -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    entries = _exports("libcuda.so")
    bases = {re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in entries}
    version = ctypes.c_int(-1)
    version_code = cuda.cuDriverGetVersion(ctypes.byref(version))
    table = ctypes.c_void_p(_UNTOUCHED)
    code = cuda.cuGetExportTable(ctypes.byref(table), b"\x01" * 16)
    pointer = {None: "null", _UNTOUCHED: "untouched"}.get(table.value, "set")
    return {
        "values": {
            "version": f"{version_code} {version.value}",
            "unknown_export_table": f"{code} {pointer}",
        },
        "resolved": _resolved(cuda, sorted({*more_names, *entries, *bases}), entries),
        "calls": _calls(cuda, entries),
    }


def ask_nvml() -> Any:
    """Return libnvidia-ml's error texts and its answers. -1 stands for all codes without a text."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    texts = {str(code): str(nvml.nvmlErrorString(code).decode()) for code in _NVML_ERRORS}
    known = {code: text for code, text in texts.items() if text != texts["-1"] or code == "-1"}
    return {"errors": known, "calls": _calls(nvml, _exports("libnvidia-ml.so"))}


if __name__ == "__main__":
    asked = ask_cuda(sys.stdin.read().split("\n")) if "cuda" in sys.argv else ask_nvml()
    json.dump(asked, sys.stdout)
