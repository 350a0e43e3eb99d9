"""headers.py lays structures out as a C compiler does. wire.py reads messages in any chunks."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from simgpu import board, headers, wire
from simgpu.wire import Op, Reader, Request, Role, Status

REQUESTS = [
    Request(Op.HELLO, (1, 2, 3)),
    Request(Op.CONTEXT_CREATE, ()),
    Request(Op.MEMORY_ALLOC, (7, 2**40)),
    Request(Op.MEMORY_IMPORT, (7, 0)),
    Request(Op.PROCESSES, ()),
]


@pytest.mark.sim
def test_a_compiler_reads_the_same_in_the_headers(tmp_path: Path) -> None:
    sizes = {f"struct {name}": packed.size for name, packed in wire.STRUCTS.items()}
    sizes |= {
        f"struct {name}": ctypes.sizeof(kind)
        for name, kind in board.STRUCTS.items()
        if name.startswith("sim_")
    }
    numbers = {f"SIM_{op.name}": int(op) for op in Op}
    numbers |= {f"SIM_{status.name}": int(status) for status in Status}
    numbers |= {f"SIM_ROLE_{role.name}": int(role) for role in Role}
    constants: dict[str, int] = {}
    for name in ("wire.h", "board.h"):
        constants |= headers.Header(name).constants
    assert len(sizes) > 20 and len(constants) > len(numbers) > 20
    assert numbers.items() <= constants.items()
    source = tmp_path / "header.c"
    source.write_text(
        '#include "board.h"\n#include "wire.h"\n'
        + "".join(f'_Static_assert({name} == {value}, "");\n' for name, value in constants.items())
        + "".join(f'_Static_assert(sizeof({name}) == {n}, "");\n' for name, n in sizes.items())
    )
    subprocess.run(["gcc", "-fsyntax-only", f"-I{headers.DIRECTORY}", source], check=True)


@pytest.mark.parametrize("step", [1, 3, 10_000], ids=["bytewise", "in-threes", "whole"])
def test_requests_come_out_however_the_bytes_come_in(step: int) -> None:
    first = REQUESTS[0].encode()
    data = b"".join(request.encode() for request in REQUESTS) + first[:-1]
    reader, out = Reader(), []
    for at in range(0, len(data), step):
        out += list(reader.feed(data[at : at + step]))
    assert out == REQUESTS
    assert list(reader.feed(first[-1:])) == [REQUESTS[0]]
