"""The library reads the grant: the newest valid copy, changes at run time, and damaged files."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from gpuslice.contract import grant_file
from tests.shim.region.core import GRANT_ID, LIMIT_BYTES, Box, Shell, patch, uuid

pytestmark = pytest.mark.sim
SECOND = grant_file.COPY_STRIDE


@pytest.fixture
def running(box: Box) -> Iterator[Shell]:
    with box.shell() as shell:
        assert shell.ask("attach") == "OK"
        yield shell


@pytest.mark.parametrize(("torn", "limit"), [(0, 4096), (1, LIMIT_BYTES)])
def test_of_two_copies_one_is_enough(box: Box, torn: int, limit: int) -> None:
    box.set_limit(4096)
    box.tear(torn)
    with box.shell() as shell:
        assert shell.ask("attach") == "OK"
        assert shell.ask("limit 0") == str(limit)


def test_without_descriptors_it_is_the_descriptors_that_are_named(box: Box) -> None:
    """A process without free descriptors gets an error that says so, and may try again."""
    with box.shell() as shell:
        assert shell.ask("used 0") == "0", "it has started"
        there = len(os.listdir(f"/proc/{shell.pid}/fd"))
        former = resource.prlimit(shell.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(shell.pid, resource.RLIMIT_NOFILE, (there, former[1]))
        said = shell.ask("attach")
        assert said.startswith("SYSTEM ") and os.strerror(errno.EMFILE) in said
        resource.prlimit(shell.pid, resource.RLIMIT_NOFILE, former)
        assert shell.ask("attach") == "OK"


def test_a_writer_killed_between_its_two_writes_leaves_the_old_limit(
    box: Box, running: Shell
) -> None:
    for _ in range(3):
        box.set_limit(1, writes=1)
        with box.shell() as fresh:
            assert fresh.ask("attach") == "OK"
            assert [shell.ask("limit 0") for shell in (running, fresh)] == [str(LIMIT_BYTES)] * 2
    box.set_limit(5000)
    assert running.ask("limit 0") == "5000"


def test_a_grant_damaged_while_running_leaves_the_last_good_one_in_force(
    box: Box, running: Shell
) -> None:
    """First the newest copy is damaged. The older copy's limit is larger and must not return."""
    box.set_limit(9000)
    assert running.ask("limit 0") == "9000"
    for copy in (SECOND, 0):
        patch(box.grant, copy, (77).to_bytes(8, "little"))
        assert running.ask("limit 0") == "9000"
    assert running.ask("reserve 0 9001") == "OVER_LIMIT"
    with box.shell() as fresh:
        assert fresh.ask("attach").startswith("GRANT_INVALID")


def test_another_grant_in_the_same_file_is_ignored(box: Box, running: Shell) -> None:
    box.set_limit(1 << 40, grant_id=GRANT_ID + 1)
    assert running.ask("limit 0") == str(LIMIT_BYTES)


def test_gpus_are_found_by_uuid(box: Box) -> None:
    digits = [uuid(gpu).removeprefix("GPU-").replace("-", "") for gpu in range(3)]
    with box.of_gpus(2).shell() as shell:
        assert shell.ask(f"gpu {digits[1]}") == "-1", "not before the grant is read"
        assert shell.ask("peek") == "OK"
        assert [shell.ask(f"gpu {each}") for each in digits] == ["0", "1", "-1"]
