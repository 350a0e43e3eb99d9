"""One target under atheris, in a process of its own: `python -m tests.fuzz.one NAME REPORT ...`.

The remaining arguments go to libFuzzer, which may end the process at any time; so results are
written to REPORT as it runs: executions, and the growth of memory. Memory is measured in two ways,
since libFuzzer keeps every input that adds coverage: by the interpreter's own count of live blocks,
which covers Python's alone, and by the resident size.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import atheris

_FIRST_LOOK: Final = 1 << 12
"""Caches (of regular expressions, of generated code, of atheris itself) have filled by then."""
_LOOK_EVERY: Final = 1 << 12
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _quoted(word: str) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"'


def _watched(run: Callable[[bytes], None], report: Path) -> Callable[[bytes], None]:
    known: dict[str, Any] = {"executions": 0}

    def look() -> None:
        gc.collect()
        known["blocks"] = sys.getallocatedblocks()
        known["resident_bytes"] = _resident_bytes()
        known.setdefault("first_blocks", known["blocks"])
        known.setdefault("first_resident_bytes", known["resident_bytes"])

    def save() -> None:
        report.write_text(json.dumps(known))

    def one(data: bytes) -> None:
        count = known["executions"] = known["executions"] + 1
        if count >= _FIRST_LOOK and count % _LOOK_EVERY == 0:
            look()
            save()
        run(data)

    atexit.register(save)
    return one


def main() -> None:
    name, report, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=["gpuslice", "nri_plugin", "scheduler"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    options = [f"-max_len={target.bytes_most}", "-len_control=0", *arguments]
    if target.words:
        dictionary = Path(report).with_suffix(".dict")
        dictionary.write_text("".join(f"{_quoted(word)}\n" for word in target.words if word))
        options.append(f"-dict={dictionary}")
    atheris.Setup([sys.argv[0], *options], _watched(target.run, Path(report)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
