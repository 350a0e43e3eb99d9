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
_SERVE_COMMANDS = (
    PHYSICAL
    + """
import sys
peer = socket.socket(fileno=int(sys.argv[1]))
def send(handle):
    fd = int(must(d.cuMemExportToShareableHandle(handle, FD, 0)))
    socket.send_fds(peer, [b"x"], [fd])
    os.close(fd)
def receive():
    return socket.recv_fds(peer, 1, 1)[1][0]
def take():
    fd = receive()
    code, handle = d.cuMemImportFromShareableHandle(fd, FD)
    os.close(fd)
    return code, handle
"""
    + SERVE_COMMANDS
)


@dataclass
class Program:
    """A process that executes given lines; `end` is the test's end of its socket."""

    talk: Talk
    end: socket.socket

    def do(self, *lines: str) -> None:
        for line in lines:
            self.talk.do(line)

    def give(self, other: Program, handle: str = "handle") -> None:
        """Export `handle` and pass the descriptor on."""
        self.do(f"send({handle})")
        _, descriptors, _, _ = socket.recv_fds(self.end, 1, 1)
        socket.send_fds(other.end, [b"x"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def _programs(host: Host, *directories: Path) -> Iterator[Sequence[Program]]:
    with ExitStack() as stack:
        started = [stack.enter_context(_program(host, directory)) for directory in directories]
        yield started


@contextmanager
def _program(host: Host, directory: Path) -> Iterator[Program]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", _SERVE_COMMANDS, str(theirs.fileno())]
    with (
        ours,
        theirs,
        talking(command, host.environment(directory), [theirs.fileno()]) as talk,
    ):
        yield Program(talk, ours)


def _shared(exporter: Program, *importers: Program) -> None:
    """Each importer has it mapped as a whole."""
    exporter.do(f"handle = create({_SIZE}, shareable=FD)")
    for importer in importers:
        exporter.give(importer)
        importer.do(
            "handle = must(take())",
            f"at = reserve({_SIZE}); map(at, handle, {_SIZE}); allow(at, {_SIZE})",
        )


def test_row_13_importers_of_the_exporters_container_pay_nothing(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, *[directory] * 4) as (exporter, *importers):
        _shared(exporter, *importers)
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
        exporter.do(f"handle = create({_SIZE}, shareable=FD)")
        exporter.give(importer)
        importer.do("handle = must(take())")
        assert used(ours) == 0
        importer.do(f"at = reserve(2 * {_SIZE}); map(at, handle, {_SIZE})")
        assert used(ours) == _SIZE
        importer.do(f"assert d.cuMemMap(at + {_SIZE}, {_SIZE}, 0, handle, 0)[0] == OOM")
        assert used(ours) == _SIZE
        importer.do("release(handle)")
        assert used(ours) == _SIZE
        importer.do(f"unmap(at, {_SIZE})")
        assert (used(ours), used(other)) == (0, _SIZE)


def test_what_the_exporter_has_released_before_it_is_imported_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, directory, directory) as (exporter, importer):
        exporter.do(f"handle = create({_SIZE}, shareable=FD)")
        exporter.give(importer)
        exporter.do("release(handle)")
        assert used(directory) == 0
        importer.do("handle = must(take())", f"at = reserve({_SIZE}); map(at, handle, {_SIZE})")
        assert used(directory) == _SIZE
        importer.do(f"release(handle); unmap(at, {_SIZE})")
        assert used(directory) == 0
