"""Memory that one process exports and others open is charged once while any process holds it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host, used
from tests.shim.exact import EXACT, SLOW
from tests.talking import Talk, talkers

pytestmark = pytest.mark.sim

SIZE = 100 * MIB
OUT_OF_MEMORY, INVALID_CONTEXT = "2", "201"


def _talkers(host: Host, *directories: Path) -> AbstractContextManager[list[Talk]]:
    return talkers(*map(host.environment, directories))


def _seen(talk: Talk) -> int:
    code, free, total = map(int, talk.ask("info").split())
    assert code == 0
    return total - free


def _exported(exporter: Talk, size: int = SIZE) -> str:
    assert exporter.ask(f"alloc {size}") == "0 0"
    code, handle = exporter.ask("export 0").split()
    assert code == "0"
    return handle


def test_row_16_ipc_memory_is_charged_once(host: Host, grants: Grants) -> None:
    directory = grants.make(GIB)
    with _talkers(host, *[directory] * 3) as (exporter, first, second):
        before = used(directory)
        handle = _exported(exporter)
        for talk, command, answer, held_bytes in (
            (first, f"open {handle}", "0 0", SIZE),
            (second, f"open {handle} v1", "0 0", SIZE),
            (first, "close 0", "0", SIZE),
            # the second importer holds the memory, although the exporter frees it
            (exporter, "free 0", "0", SIZE),
            (second, "close 0", "0", 0),
        ):
            assert {_seen(each) for each in (exporter, first, second)} == {before + SIZE}
            assert talk.ask(command) == answer
            assert used(directory) == before + held_bytes, command


def test_memory_of_an_exporter_outside_is_charged_to_the_importer(
    host: Host, grants: Grants
) -> None:
    ours, other = grants.make(GIB), grants.make(GIB)
    with _talkers(host, other, ours, ours) as (exporter, first, second):
        handle = _exported(exporter)
        before = used(ours)
        for talk in (first, second):
            assert [talk.ask(f"open {handle}") for _ in range(2)] == ["0 0", "0 1"]
        assert used(ours) == before + 2 * SIZE, "each its own, and no more for a second opening"
        assert [first.ask("close 0") for _ in range(2)] == ["0", "0"]
        assert used(ours) == before + SIZE
        assert second.ask(f"alloc {GIB - used(ours)}") != "0", "the limit has it in"
    assert used(other) > 0


def test_a_refused_opening_holds_nothing(host: Host, grants: Grants) -> None:
    """The exporter cannot open its own memory, and the memory exceeds the importer's limit."""
    ours, other = grants.make(GIB // 2 - 2 * MIB), grants.make(GIB)
    with _talkers(host, other, ours) as (exporter, importer):
        before = used(other), used(ours)
        handle = _exported(exporter, GIB // 2)
        assert exporter.ask(f"open {handle}") == INVALID_CONTEXT
        assert importer.ask(f"open {handle}") == OUT_OF_MEMORY
        assert exporter.ask("free 0") == "0"
        assert (used(other), used(ours)) == before


def test_memory_that_two_threads_open_at_once_is_held_until_both_have_closed_it(
    host: Host, grants: Grants
) -> None:
    """The second thread opens the memory while the library queries its size for the first."""
    with _talkers(host, grants.make(GIB)) as (exporter,):
        handle = _exported(exporter)
        host.python(
            f"""{EXACT}{SLOW}
import ctypes
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
library, opened = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
handle = Handle.from_buffer_copy(bytes.fromhex("{handle}"))
def open():
    assert library.cuIpcOpenMemHandle_v2(ctypes.byref(opened), handle, 1) == 0
before = charged()
with slow("cuMemGetAddressRange_v2", 500):
    for thread in [beside(open) for _ in range(2)]:
        thread.join()
for left in ({SIZE}, {SIZE}, 0):
    assert charged() == before + left, (charged() - before, left)
    assert not left or library.cuIpcCloseMemHandle(opened) == 0
""",
            grants.make(GIB),
        )


def test_memory_that_shares_a_block_is_never_charged_too_little(host: Host, grants: Grants) -> None:
    """The importer is charged for the whole block of the exported memory, which may be too much."""
    directory = grants.make(GIB)
    with _talkers(host, directory, directory) as (exporter, importer):
        before = used(directory)
        assert importer.ask(f"open {_exported(exporter, 4096)}") == "0 0"
        assert before + 2 * MIB <= used(directory) <= before + 4 * MIB
        for talk, command, left_bytes in ((exporter, "free 0", 2 * MIB), (importer, "close 0", 0)):
            assert talk.ask(command) == "0"
            assert used(directory) == before + left_bytes
