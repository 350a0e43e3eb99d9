"""wire.py equals wire.h, and its reader accepts bytes in any chunks."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from simgpu import wire
from simgpu.wire import Op, Reader, Request, Role, Status, WireError
from tests.support import ROOT

HEADER = ROOT / "simgpu/src/client/wire.h"

REQUESTS = [
    Request(Op.HELLO, (1, 2)),
    Request(Op.CONTEXT_CREATE, ()),
    Request(Op.MEMORY_ALLOC, (7, 2**40)),
    Request(Op.LAUNCH, (7, 0, wire.DURATION_DEFAULT)),
    Request(Op.PROCESSES, ()),
]


def _c_program() -> str:
    """Prints every constant of the header, and of every struct its size and the fields' offsets."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    constants = re.findall(r"\b(SIM_[A-Z0-9_]+)\b", text)
    lines = [
        f'printf("{name} %llu\\n", (unsigned long long){name});'
        for name in dict.fromkeys(constants)
        if name != "SIMGPU_WIRE_H"
    ]
    for name, body in re.findall(r"struct (\w+) \{(.*?)\n\};", text, flags=re.DOTALL):
        lines.append(f'printf("struct {name} %zu\\n", sizeof(struct {name}));')
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            lines += [
                f'printf("at {name} %zu %zu\\n", offsetof(struct {name}, {field}),'
                f" sizeof(((struct {name} *)0)->{field}));"
                for field in re.findall(r"(\w+)(?:\[\d+\])?(?:,|$)", declaration)
            ]
    body = "\n".join(lines)
    return (
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{HEADER}"\nint main(void) {{\n{body}\nreturn 0;\n}}\n'
    )


@pytest.mark.sim
def test_the_header_and_the_daemon_agree(tmp_path: Path) -> None:
    source, program = tmp_path / "wire.c", tmp_path / "wire"
    source.write_text(_c_program())
    subprocess.run(["gcc", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, text=True, capture_output=True).stdout

    constants: dict[str, int] = {}
    sizes: dict[str, int] = {}
    places: dict[str, list[tuple[int, int]]] = {}
    for line in printed.splitlines():
        match line.split():
            case ["struct", name, size]:
                sizes[name] = int(size)
            case ["at", name, offset, size]:
                places.setdefault(name, []).append((int(offset), int(size)))
            case [name, value]:
                constants[name] = int(value)

    ours = {f"SIM_{member.name}": int(member) for kind in (Op, Status) for member in kind}
    ours |= {f"SIM_ROLE_{role.name}": int(role) for role in Role}
    ours |= {
        "SIM_PROTOCOL": wire.PROTOCOL,
        "SIM_PAYLOAD_BYTES": wire.PAYLOAD_BYTES,
        "SIM_DURATION_DEFAULT": wire.DURATION_DEFAULT,
    }
    assert constants == ours
    assert sizes == {name: packed.size for name, packed in wire.STRUCTS.items()}
    assert places == {name: _places(packed) for name, packed in wire.STRUCTS.items()}


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


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<II", 99, 0), "operation 99 is not known"),
        (struct.pack("<II", 0, 0), "operation 0 is not known"),
        (struct.pack("<II", Op.HELLO, 0), "HELLO carries 8 bytes, not 0"),
        (struct.pack("<II", Op.PROCESSES, 1) + b"x", "PROCESSES carries 0 bytes, not 1"),
        (struct.pack("<II", Op.HELLO, 65537), "message of 65537 bytes"),
        (b"\xff" * 8, "message of 4294967295 bytes"),
        (b"GET / HTTP/1.1\r\n", "message of"),
    ],
)
def test_what_no_library_sends_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=re.escape(reason)):
        list(Reader().feed(data))


def test_a_reply_is_a_head_and_a_payload() -> None:
    payload = wire.pack("sim_id", 7)
    assert wire.reply(Status.OK, payload) == struct.pack("<IIQ", 0, 8, 7)


def test_a_reply_is_never_longer_than_the_libraries_take() -> None:
    with pytest.raises(ValueError, match="reply of"):
        wire.reply(Status.OK, b"x" * (wire.PAYLOAD_BYTES + 1))
