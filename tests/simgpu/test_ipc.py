"""Memory exported by one process and opened by others: the card keeps it as long as any has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.shim.core import until
from tests.simgpu.host import Host
from tests.talking import TALKER, Talk, talking

pytestmark = pytest.mark.sim

MIB = 1 << 20
SIZE = 100 * MIB
INVALID_VALUE = 1
INVALID_CONTEXT = 201
INVALID_HANDLE = 400


@contextmanager
def _pair(host: Host) -> Iterator[tuple[Talk, Talk]]:
    with talking(TALKER, host.env()) as exporter, talking(TALKER, host.env()) as importer:
        yield exporter, importer


def _free(host: Host) -> int:
    return host.connect(0).free_bytes()


def _exported(exporter: Talk) -> str:
    assert exporter.ask(f"alloc {SIZE}") == "0 0"
    code, handle = exporter.ask("export 0").split()
    assert code == "0"
    return handle


def test_opened_memory_costs_nothing_more_and_outlives_its_exporter(driver_host: Host) -> None:
    with _pair(driver_host) as (exporter, importer):
        before = _free(driver_host)
        handle = _exported(exporter)
        assert importer.ask(f"open {handle}") == "0 0"
        assert before - _free(driver_host) == SIZE
        assert exporter.ask("free 0") == "0"
        assert before - _free(driver_host) == SIZE, "the importer has it"
        assert importer.ask("close 0") == "0"
        assert _free(driver_host) == before
        assert importer.ask(f"open {handle}") == str(INVALID_HANDLE)


def test_a_dead_exporters_memory_stays_with_the_importer(driver_host: Host) -> None:
    with _pair(driver_host) as (exporter, importer):
        handle = _exported(exporter)
        assert importer.ask(f"open {handle}") == "0 0"
        exporter.kill()
        until(lambda: len(driver_host.connect(0).processes()) == 1, "the exporter's end")
        between = _free(driver_host)
        assert importer.ask("close 0") == "0"
        assert _free(driver_host) == between + SIZE


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_opened_twice_it_is_one_address_and_closed_twice(driver_host: Host, version: str) -> None:
    with _pair(driver_host) as (exporter, importer):
        handle = _exported(exporter)
        before = _free(driver_host)
        assert importer.ask(f"open {handle} {version}") == "0 0"
        assert importer.ask(f"open {handle} {version}") == "0 1"
        exporter.kill()
        until(lambda: len(driver_host.connect(0).processes()) == 1, "the exporter's end")
        between = _free(driver_host)
        assert importer.ask("close 0") == "0"
        assert _free(driver_host) == between >= before
        assert importer.ask("close 1") == "0"
        assert _free(driver_host) == between + SIZE
        assert importer.ask("close 1") == str(INVALID_VALUE)


def test_what_cannot_be_opened_or_freed(driver_host: Host) -> None:
    with _pair(driver_host) as (exporter, importer):
        handle = _exported(exporter)
        assert exporter.ask(f"open {handle}") == str(INVALID_CONTEXT), "by its own process"
        assert importer.ask(f"open {'00' * 64}") == str(INVALID_HANDLE)
        assert importer.ask(f"open {handle}") == "0 0"
        assert importer.ask("free 0") == str(INVALID_VALUE), "it is closed, not freed"
        assert importer.ask("export 0").split()[0] == str(INVALID_VALUE)
        assert exporter.ask("close 0") == str(INVALID_VALUE), "it is freed, not closed"
        assert exporter.ask("free 0") == "0"
        assert exporter.ask("export 0").split()[0] == str(INVALID_VALUE)
