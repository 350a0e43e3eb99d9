"""Physical memory that processes share by descriptors: charged once in a container, by whichever
process exports it, until none of them holds it; from outside the container, by what is mapped."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shim.clients import SERVE_COMMANDS
from tests.shim.conftest import GIB, MIB, Grants, Host, used
from tests.shim.exact import PHYSICAL
from tests.talking import Talk, talking

pytestmark = pytest.mark.sim

_SIZE = 100 * MIB
_PROGRAM = f"""{PHYSICAL}
import sys
peer = socket.socket(fileno=int(sys.argv[1]))
def send(handle):
    fd = int(must(d.cuMemExportToShareableHandle(handle, FD, 0)))
    socket.send_fds(peer, [b"x"], [fd])
    os.close(fd)
def take():
    fd = socket.recv_fds(peer, 1, 1)[1][0]
    handle = must(d.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    return handle
{SERVE_COMMANDS}"""


@dataclass
class Program:
    """A process that executes given lines; `end` is the test's end of its socket."""

    talk: Talk
    end: socket.socket

    def do(self, *lines: str) -> None:
        for line in lines:
            self.talk.do(line)

    def give(self, other: Program) -> None:
        """Export `handle`, which the other program then imports."""
        self.do("send(handle)")
        _, (descriptor,), _, _ = socket.recv_fds(self.end, 1, 1)
        socket.send_fds(other.end, [b"x"], [descriptor])
        os.close(descriptor)


@contextmanager
def _programs(host: Host, *directories: Path) -> Iterator[Sequence[Program]]:
    """One in each directory. The first has memory that it may share."""
    with ExitStack() as stack:
        started = []
        for directory in directories:
            ours, theirs = map(stack.enter_context, socket.socketpair())
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
            environment = host.environment(directory)
            talk = stack.enter_context(talking(command, environment, [theirs.fileno()]))
            started.append(Program(talk, ours))
        started[0].do(f"handle = create({_SIZE}, shareable=FD)")
        yield started


_MAP = f"at = reserve(2 * {_SIZE}); map(at, handle, {_SIZE})"


def test_row_13_importers_of_the_exporters_container_pay_nothing(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, *[directory] * 4) as (exporter, *importers):
        for importer in importers:
            exporter.give(importer)
            importer.do("handle = take()", _MAP, f"allow(at, {_SIZE})")
        assert used(directory) == _SIZE
        exporter.do("release(handle)")
        assert used(directory) == _SIZE, "the importers hold it still"
        for importer in importers:
            importer.do(f"release(handle); unmap(at, {_SIZE})")
        assert used(directory) == 0


def test_memory_of_another_container_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    ours, other = grants.make(150 * MIB), grants.make(GIB)
    with _programs(host, other, ours) as (exporter, importer):
        exporter.give(importer)
        for line, charged_bytes in (
            ("handle = take()", 0),
            (_MAP, _SIZE),
            (f"assert d.cuMemMap(at + {_SIZE}, {_SIZE}, 0, handle, 0)[0] == OOM", _SIZE),
            ("release(handle)", _SIZE),
            (f"unmap(at, {_SIZE})", 0),
        ):
            importer.do(line)
            assert used(ours) == charged_bytes, line
        assert used(other) == _SIZE


def test_what_the_exporter_has_released_before_it_is_imported_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, directory, directory) as (exporter, importer):
        exporter.give(importer)
        exporter.do("release(handle)")
        assert used(directory) == 0
        importer.do("handle = take()", _MAP)
        assert used(directory) == _SIZE
        importer.do(f"release(handle); unmap(at, {_SIZE})")
        assert used(directory) == 0
