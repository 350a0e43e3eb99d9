"""A client of the daemon in Python, which sends requests to a GPU without any library.

`python -m tests.simgpu.peer SOCKET COMMAND...` is a process that a test can kill. It executes each
command, prints a line when all are done, and then waits until its stdin is closed. Commands:
alloc=BYTES; fork (a child that keeps the connection, prints its pid, and outlives its parent).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from simgpu import wire
from simgpu.wire import Op, Request, Role, Status


class Peer:
    """A connection to a GPU. The constructor sends the hello."""

    def __init__(self, path: Path, role: Role = Role.CUDA) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(30)
        try:
            self.socket.connect(str(path))
            status, self.gpu = self.call(Op.HELLO, wire.PROTOCOL, role, 0)
            assert status is Status.OK
        except BaseException:
            self.close()
            raise

    def call(self, op: Op, *fields: int) -> tuple[Status, bytes]:
        self.socket.sendall(Request(op, fields).encode())
        status, length = wire.STRUCTS["sim_reply"].unpack(self._exactly(wire.HEAD_BYTES))
        return Status(status), self._exactly(length)

    def make(self, op: Op, *fields: int) -> int:
        """Make a call that succeeds, and return the id in its answer."""
        status, payload = self.call(op, *fields)
        assert status is Status.OK, status
        name = "sim_context" if op is Op.CONTEXT_CREATE else "sim_id"
        made = wire.STRUCTS[name].unpack(payload)[0]
        assert isinstance(made, int)
        return made

    def free_bytes(self) -> int:
        status, payload = self.call(Op.MEMORY_INFO)
        assert status is Status.OK, status
        _, free = wire.STRUCTS["sim_memory"].unpack(payload)
        assert isinstance(free, int)
        return free

    def processes(self) -> dict[int, int]:
        """Return the bytes that each process holds, by PID."""
        status, payload = self.call(Op.PROCESSES)
        assert status is Status.OK, status
        return {pid: used for used, pid, _ in wire.STRUCTS["sim_process"].iter_unpack(payload)}

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, wanted: int) -> bytes:
        data = b""
        while len(data) < wanted:
            part = self.socket.recv(wanted - len(data))
            if not part:
                raise ConnectionError("the daemon closed the connection")
            data += part
        return data


def main(path: str, *commands: str) -> None:
    peer = Peer(Path(path))
    context = peer.make(Op.CONTEXT_CREATE)
    for command in commands:
        name, _, value = command.partition("=")
        if name == "alloc":
            peer.make(Op.MEMORY_ALLOC, context, int(value))
        elif name == "fork":
            child = os.fork()
            if child == 0:
                signal.pause()
            sys.stdout.write(f"{child}\n")
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
