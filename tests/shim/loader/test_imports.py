"""Physical memory that processes share by descriptors: charged once in a container, by whichever
process exports it, until none of them holds it; from outside the container, by what is mapped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract import names
from gpu.account import Account
from shim import region
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host, gpu_table, simulated
from tests.shim.exact import PHYSICAL
from tests.support import until

pytestmark = pytest.mark.sim

_SIZE = 100 * MIB
_OBEY = (
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
print("ready", flush=True)
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except BaseException as error:
        print(repr(error), flush=True)
"""
)


@dataclass
class Program:
    """A process that executes given lines; `end` is the test's end of its socket."""

    process: subprocess.Popen[str]
    end: socket.socket

    def do(self, *lines: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n", line

    def give(self, other: Program, handle: str = "handle") -> None:
        """Export `handle` and pass the descriptor on."""
        self.do(f"send({handle})")
        _, descriptors, _, _ = socket.recv_fds(self.end, 1, 1)
        socket.send_fds(other.end, [b"x"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def exit(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def _programs(host: Host, *directories: Path) -> Iterator[Sequence[Program]]:
    with ExitStack() as stack:
        started = [stack.enter_context(_program(host, directory)) for directory in directories]
        yield started


@contextmanager
def _program(host: Host, directory: Path) -> Iterator[Program]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _OBEY, str(theirs.fileno())],
            env=host.environment(directory),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Program(process, ours)
        finally:
            process.kill()
            process.communicate()


def _used(directory: Path) -> int:
    return region.status(directory)[0].use.used_bytes


def _imported(directory: Path) -> list[int]:
    with Account(directory) as account:
        return list(account.imported_bytes())


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
        assert _used(directory) == _SIZE
        assert _imported(directory) == [3 * _SIZE]
        exporter.do("release(handle)")
        assert _used(directory) == _SIZE, "the importers hold it still"
        for importer in importers:
            importer.do(f"release(handle); unmap(at, {_SIZE})")
        assert _used(directory) == 0
        assert _imported(directory) == [0]


@pytest.mark.parametrize("killed", [False, True])
def test_the_charge_lives_until_the_last_importer_has_gone(
    host: Host, grants: Grants, killed: bool
) -> None:
    directory = grants.make(GIB)
    with _programs(host, *[directory] * 4) as (exporter, first, second, watcher):
        _shared(exporter, first, second)
        for program in (exporter, first):
            if killed:
                program.kill()
            else:
                program.exit()
            watcher.do("must(d.cuMemGetInfo())")
            assert _used(directory) == _SIZE
        second.do("data = ctypes.create_string_buffer(1)", "must(d.cuMemcpyDtoH(data, at, 1))")
        second.kill()

        def is_free() -> bool:
            watcher.do("must(d.cuMemGetInfo())")
            return _used(directory) == 0

        until(is_free, "the last importer's exit ends the charge")


def test_what_a_process_exports_and_imports_itself_is_one_memory(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, directory) as (program,):
        program.do(f"handle = create({_SIZE}, shareable=FD)")
        program.give(program)
        program.do("again = must(take())")
        program.give(program)
        program.do("third = must(take())", f"took({_SIZE})")
        assert _imported(directory) == [0]
        program.do("release(handle); release(again)", f"took({_SIZE})", "release(third); took(0)")


def test_memory_of_another_container_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    ours, other = grants.make(150 * MIB), grants.make(GIB)
    with _programs(host, other, ours) as (exporter, importer):
        exporter.do(f"handle = create({_SIZE}, shareable=FD)")
        exporter.give(importer)
        importer.do("handle = must(take())")
        assert _used(ours) == 0
        importer.do(f"at = reserve(2 * {_SIZE}); map(at, handle, {_SIZE})")
        assert _used(ours) == _SIZE
        importer.do(f"assert d.cuMemMap(at + {_SIZE}, {_SIZE}, 0, handle, 0)[0] == OOM")
        assert _used(ours) == _SIZE
        importer.do("release(handle)")
        assert _used(ours) == _SIZE
        importer.do(f"unmap(at, {_SIZE})")
        assert (_used(ours), _used(other)) == (0, _SIZE)


def test_what_the_exporter_has_released_before_it_is_imported_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, directory, directory) as (exporter, importer):
        exporter.do(f"handle = create({_SIZE}, shareable=FD)")
        exporter.give(importer)
        exporter.do("release(handle)")
        assert _used(directory) == 0
        importer.do("handle = must(take())", f"at = reserve({_SIZE}); map(at, handle, {_SIZE})")
        assert _used(directory) == _SIZE
        importer.do(f"release(handle); unmap(at, {_SIZE})")
        assert _used(directory) == 0


def test_more_exports_than_there_are_shared_slots(
    build_dir: Path, library: Path, tmp_path: Path, grants: Grants
) -> None:
    """Memory that finds no slot stays its exporter's, and its importers pay for what they map."""
    directory = grants.make(8 * GIB)
    many, small = names.MAX_SLOTS // 2 + 3, 2 * MIB
    large = gpu_table(0, GPUS[0][0], 8 * GIB)
    with (
        simulated(build_dir, library, tmp_path, gpus=large) as host,
        _programs(host, directory, directory) as (exporter, importer),
    ):
        exporter.do(
            f"handles = [create({small}, shareable=FD) for _ in range({many})]",
            "fds = [int(must(d.cuMemExportToShareableHandle(h, FD, 0))) for h in handles]",
            "for fd in fds: os.close(fd)",
        )
        assert _used(directory) == many * small
        exporter.give(importer, "handles[-1]")
        importer.do(f"handle = must(take()); at = reserve({small}); map(at, handle, {small})")
        assert _used(directory) == (many + 1) * small
        exporter.do("for h in handles: release(h)")
        importer.do(f"release(handle); unmap(at, {small})")
        assert _used(directory) == 0
