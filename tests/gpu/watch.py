"""`python -m tests.gpu.watch UUID`: a line on stdin is answered with the bytes the card gave up.

Runs without the library, beside a program that has it.
"""

from __future__ import annotations

import sys

import pynvml

from tests.gpu.facts import used_bytes


def main(uuid: str) -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    for _ in sys.stdin:
        sys.stdout.write(f"{used_bytes(handle)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
