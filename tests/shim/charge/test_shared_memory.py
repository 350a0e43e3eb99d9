"""Physical memory that processes share by descriptors is charged once in a container, while any
process holds it. Of memory from another container, the mapped bytes are charged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host, used
from tests.shim.exact import PHYSICAL
from tests.talking import Talk

pytestmark = pytest.mark.sim

_SIZE = 100 * MIB
_PROGRAM = f"""{PHYSICAL}
SIZE = {_SIZE}
peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
peer.bind(f"\\0shared-memory-{{os.getpid()}}")
def give(handle, pid):
    fd = int(must(d.cuMemExportToShareableHandle(handle, FD, 0)))
    peer.connect(f"\\0shared-memory-{{pid}}")
    socket.send_fds(peer, [b"x"], [fd])
    os.close(fd)
def take():
    fd = socket.recv_fds(peer, 1, 1)[1][0]
    handle = must(d.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    return handle
at = reserve(2 * SIZE)
"""


@contextmanager
def _programs(host: Host, *directories: Path) -> Iterator[Sequence[Talk]]:
    """Start a program under each grant. The first exports memory and can give it to the others."""
    with ExitStack() as stack:
        first, *others = [
            stack.enter_context(host.serving(_PROGRAM, directory)) for directory in directories
        ]
        first.do("handle = create(SIZE, shareable=FD)")
        for other in others:
            first.do(f"give(handle, {other.pid})")
        yield first, *others


def test_row_13_importers_of_the_exporters_container_pay_nothing(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, *[directory] * 4) as (exporter, *importers):
        for importer in importers:
            for line in ("handle = take()", "map(at, handle, SIZE)", "allow(at, SIZE)"):
                importer.do(line)
        assert used(directory) == _SIZE
        exporter.do("release(handle)")
        assert used(directory) == _SIZE, "the importers hold it still"
        for importer in importers:
            importer.do("release(handle)")
            importer.do("unmap(at, SIZE)")
        assert used(directory) == 0


def test_memory_of_another_container_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    ours, other = grants.make(150 * MIB), grants.make(GIB)
    with _programs(host, other, ours) as (_, importer):
        for line, charged_bytes in (
            ("handle = take()", 0),
            ("map(at, handle, SIZE)", _SIZE),
            ("assert d.cuMemMap(at + SIZE, SIZE, 0, handle, 0)[0] == OOM", _SIZE),
            ("release(handle)", _SIZE),
            ("unmap(at, SIZE)", 0),
        ):
            importer.do(line)
            assert used(ours) == charged_bytes, line
        assert used(other) == _SIZE


def test_what_the_exporter_has_released_before_it_is_imported_is_charged_by_what_is_mapped(
    host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _programs(host, directory, directory) as (exporter, importer):
        for program, line, charged_bytes in (
            (exporter, "release(handle)", 0),
            (importer, "handle = take()", 0),
            (importer, "map(at, handle, SIZE)", _SIZE),
            (importer, "release(handle)", _SIZE),
            (importer, "unmap(at, SIZE)", 0),
        ):
            program.do(line)
            assert used(directory) == charged_bytes, line
