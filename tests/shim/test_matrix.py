"""The matrix: the behaviours required of the library, as numbered rows. test_row_NN_SLUG tests row
NN. Each row must have such a test, and each such test must have a row."""

from __future__ import annotations

import re
from typing import Final

from tests.support import ROOT

ROWS: Final = {
    1: "a limit of 1024m, 1g, 1048576k, 1073741824, upper or lower case, is 1 GiB",
    2: "a bad value is refused by name; never one byte, never unlimited",
    3: "_i comes before the common limit; sixteen GPUs and more",
    4: "without a limit the totals and the free memory are the driver's",
    5: "up to the limit exactly; one byte more is OUT_OF_MEMORY and changes nothing",
    6: "a million allocations of random sizes by 16 threads end at 0",
    7: "the driver fails after the reservation: refunded, its code returned",
    8: "the driver fails to free: the charge stays, its code returned",
    9: "an unknown address reaches the driver",
    10: "pitched memory is charged by the pitch returned; ElementSize 0 is INVALID_VALUE",
    11: "managed memory is charged at its creation, its attributes unaltered",
    12: "stream-ordered memory and pools: reserved bytes charged, and back to 0",
    13: "physical memory: charged until the last reference, mappings and other processes included",
    14: "arrays and mipmaps of all shapes",
    15: "memory of graphs is bounded by the limit",
    16: "memory opened in a second process is charged once",
    17: "the host's memory never fails for the GPU's limit",
    18: "2 to 64 processes at once: never over the limit, never all refused",
    19: "a killed holder's memory is there within a second",
    20: "others come and go: the limit of the others holds",
    21: "killed at any step: the next process goes on, the counter is right",
    22: "PID reuse and PID namespaces: none killed falsely, none alive falsely",
    23: "fork, vfork and exec, posix_spawn, daemons: the parent's charge is intact",
    24: "1100 processes: one to a slot, and the others are refused",
    25: "region missing, read-only, full, truncated, corrupt, of another version: cuInit fails",
    27: "the limit follows the physical GPU, however the program numbers it",
    28: "cuMemGetInfo: no argument crashes it, use above the limit is 0 free, never underflows",
    29: "every view agrees: CUDA, NVML and the tools",
    30: "the process list shows the container's own, and its own share",
    31: "cuGetProcAddress: every name, version and flag answers as the driver",
    32: "dlsym, dlvsym, dlopen, dlmopen and other preloads: transparent",
    33: "older and newer drivers: NOT_FOUND, or passed through",
    34: "programs without CUDA: no output, no large mapping",
    35: "exports, glibc 2.17, libc alone; the process is left as it was",
    36: "the hot path: no system call, flat at a million live",
    37: "start: bounded, three hundred at once",
    44: "NVML absent, failing or slow: the limits hold",
    46: "an emptied environment (env -i, ssh, sudo) keeps the limit",
    47: "upgraded while in use, two versions on one region: both run, the limit holds",
}

"""Rows 26, 38 to 43, 45 and 48 to 50 do not concern the limit of memory."""


def test_every_row_has_its_tests() -> None:
    definition = re.compile(r"^(?:async )?def test_row_(\d\d)_", re.MULTILINE)
    files = (ROOT / "tests").rglob("test_*.py")
    named = {int(row) for file in files for row in definition.findall(file.read_text())}
    assert sorted(named) == sorted(ROWS)
