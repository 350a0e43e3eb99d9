"""wire.py equals wire.h, board.py equals board.h; wire.py's reader accepts bytes in any chunks."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
from pathlib import Path

import pytest

from simgpu import board, wire
from simgpu.wire import Op, Reader, Request, Role, Status
from tests.support import ROOT

HEADERS = ROOT / "simgpu/src/client"

REQUESTS = [
    Request(Op.HELLO, (1, 2)),
    Request(Op.CONTEXT_CREATE, ()),
    Request(Op.MEMORY_ALLOC, (7, 2**40)),
    Request(Op.MEMORY_IMPORT, (7, 0)),
    Request(Op.PROCESSES, ()),
]


def _c_program(header: Path) -> str:
    """Prints every constant of the header, and of every struct its size and the fields' offsets."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    constants = re.findall(r"\b(SIM_[A-Z0-9_]+)\b", text)
    lines = [
        f'printf("{name} %llu\\n", (unsigned long long){name});'
        for name in dict.fromkeys(constants)
    ]
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", text, flags=re.DOTALL):
        lines.append(f'printf("struct {name} %zu\\n", sizeof(struct {name}));')
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            lines += [
                f'printf("at {name} %zu %zu\\n", offsetof(struct {name}, {field}),'
                f" sizeof(((struct {name} *)0)->{field}));"
                for field in re.findall(r"(\w+)(?:\[\w+\])?(?:,|$)", declaration)
            ]
    body = "\n".join(lines)
    return (
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{header}"\nint main(void) {{\n{body}\nreturn 0;\n}}\n'
    )


class _Printed:
    """The constants of a header, and of each struct its size and its fields' (offset, size)."""

    def __init__(self, header: str, directory: Path) -> None:
        source, program = directory / "header.c", directory / "header"
        source.write_text(_c_program(HEADERS / header))
        subprocess.run(["gcc", "-o", program, source], check=True)
        printed = subprocess.run([program], check=True, text=True, capture_output=True).stdout
        self.constants: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.places: dict[str, list[tuple[int, int]]] = {}
        for line in printed.splitlines():
            match line.split():
                case ["struct", name, size]:
                    self.sizes[name] = int(size)
                case ["at", name, offset, size]:
                    self.places.setdefault(name, []).append((int(offset), int(size)))
                case [name, value]:
                    self.constants[name] = int(value)


@pytest.mark.sim
def test_the_header_and_the_daemon_agree(tmp_path: Path) -> None:
    printed = _Printed("wire.h", tmp_path)
    ours = {f"SIM_{member.name}": int(member) for kind in (Op, Status) for member in kind}
    ours |= {f"SIM_ROLE_{role.name}": int(role) for role in Role}
    ours |= {
        "SIM_PROTOCOL": wire.PROTOCOL,
        "SIM_PAYLOAD_BYTES": wire.PAYLOAD_BYTES,
    }
    assert printed.constants == ours
    assert printed.sizes == {name: packed.size for name, packed in wire.STRUCTS.items()}
    assert printed.places == {name: _places(packed) for name, packed in wire.STRUCTS.items()}


@pytest.mark.sim
def test_the_shared_memory_is_the_same_to_clients_and_to_the_daemon(tmp_path: Path) -> None:
    printed = _Printed("board.h", tmp_path)
    names = ("CHANNELS", "PENDING", "HISTORY", "BUCKETS", "BUCKET_NS", "LOCK_WAITERS")
    assert printed.constants == {f"SIM_{name}": getattr(board, name) for name in names}
    structs = {
        "sim_busy": board.SimBusy,
        "sim_item": board.SimItem,
        "sim_channel": board.SimChannel,
        "sim_board": board.SimBoard,
        "sim_shared": board.SimShared,
    }
    assert printed.sizes == {name: ctypes.sizeof(struct) for name, struct in structs.items()}
    assert printed.places == {
        name: [
            (getattr(struct, field).offset, getattr(struct, field).size)
            for field, *_ in struct._fields_
        ]
        for name, struct in structs.items()
    }


def _places(packed: struct.Struct) -> list[tuple[int, int]]:
    found, offset = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", packed.format):
        fields = [f"{count}s"] if code == "s" else [code] * int(count or 1)
        for field in fields:
            size = struct.calcsize(f"<{field}")
            found.append((offset, size))
            offset += size
    return found


@pytest.mark.parametrize("step", [1, 3, 10_000], ids=["bytewise", "in-threes", "whole"])
def test_requests_come_out_however_the_bytes_come_in(step: int) -> None:
    stream = b"".join(request.encode() for request in REQUESTS)
    trailing = REQUESTS[0].encode()[:-1]
    reader, out = Reader(), []
    data = stream + trailing
    for at in range(0, len(data), step):
        out += list(reader.feed(data[at : at + step]))
    assert out == REQUESTS
    assert list(reader.feed(REQUESTS[0].encode()[-1:])) == [REQUESTS[0]]
