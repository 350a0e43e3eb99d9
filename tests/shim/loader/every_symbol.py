"""`every_symbol.py LIST` prints cuGetProcAddress's answers for every name in the file LIST, version
and flag.

A line is: entry base version flags code status answer. The entry is v1 or v2, for cuGetProcAddress
and cuGetProcAddress_v2. The base is the name. The answer is the wrapper's name, the offset in the
driver, or null.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Final

_VERSIONS: Final = (
    "2000 3020 4000 6050 7000 7050 8000 9000 10000 10010 11000 11010 11020 11030 11040 11060 11070"
    " 11080 12000 12010 12020 12030 12040 12050 12060 12080 12090 13000 3010 13010 14000"
)
_STATUS_UNTOUCHED: Final = -7


def exports(library: Path) -> Mapping[int, str]:
    """Return one exported name for each offset."""
    command = ["nm", "-D", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(offset, 16): name for offset, _, name in map(str.split, listed.splitlines())}


def _loaded(name: str) -> tuple[int, int, str] | None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split() for line in maps if line.endswith(f"/{name}")]
    if not spans:
        return None
    return int(spans[0][0].split("-")[0], 16), int(spans[-1][0].split("-")[1], 16), spans[0][-1]


def answers(bases: list[str]) -> Iterator[str]:
    cuda = ctypes.CDLL("libcuda.so.1")
    driver, ours = _loaded("libcuda.so.1"), _loaded("libvgpu.so")
    assert driver
    wrappers = exports(Path(ours[2])) if ours else {}

    def describe(found: ctypes.c_void_p) -> str:
        pointer = found.value
        if not pointer:
            return "null"
        if ours and ours[0] <= pointer < ours[1]:
            return wrappers[pointer - ours[0]]
        assert driver[0] <= pointer < driver[1]
        return hex(pointer - driver[0])

    v2 = getattr(cuda, "cuGetProcAddress_v2", None)
    for base, version, flag in product(bases, map(int, _VERSIONS.split()), range(4)):
        found = ctypes.c_void_p()
        asked = base.encode(), ctypes.byref(found), version, ctypes.c_uint64(flag)
        code = cuda.cuGetProcAddress(*asked)
        yield f"v1 {base} {version} {flag} {code} - {describe(found)}"
        if v2 is None:
            continue
        for status in (ctypes.c_int(_STATUS_UNTOUCHED), None):
            found.value = None
            code = v2(*asked, ctypes.byref(status) if status else None)
            said = status.value if status else "-"
            yield f"v2 {base} {version} {flag} {code} {said} {describe(found)}"


if __name__ == "__main__":
    bases = Path(sys.argv[1]).read_text().split()
    sys.stdout.writelines(answer + "\n" for answer in answers(bases))
