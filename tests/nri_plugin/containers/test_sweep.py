"""Files that no container uses are removed between requests. Used files and foreign files stay."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nri_plugin.containers import records
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy.model import Share
from nri_plugin.threads import Worker
from tests.nri_plugin.host_files import put
from tests.nri_plugin.objects import planned
from tests.nri_plugin.service_scene import Host

pytestmark = pytest.mark.node

SHARES = (Share("GPU-1", 3, 5 << 30, 40),)
DEADLINE_S = 60.0


@pytest.fixture
def run(host: Host) -> RunDirectory:
    return RunDirectory(host.run, lambda: 7)


def sweep(run: RunDirectory, *users: str) -> None:
    asyncio.run(records.sweep(run, Worker("files"), DEADLINE_S, lambda: users))


def test_unused_files_are_removed(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    sweep(run)
    for key in ("c1", "c2", "pod-u"):
        run.apply(planned(key, SHARES))
    (run.root / "empty").mkdir()
    (run.root / "link").symlink_to("/")
    lock, foreign = put(run.root / ".lock"), put(run.root / "foreign/file", "another program's")
    caplog.set_level(logging.INFO)
    sweep(run, "c1", "unconfirmed")
    assert run.keys() == {"c1", "foreign"} and "removed=3 stay=1" in caplog.text
    assert lock.exists() and foreign.read_text() == "another program's"
    assert caplog.text.count("unused directory remains until the next sweep") == 1, "a link is none"
    foreign.unlink()


def test_a_container_beside_hundreds_of_unused_ones_waits_for_one_removal(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """During the sweep two directories, one of them new, come into use. Both directories stay."""
    caplog.set_level(logging.INFO)
    for number in range(300):
        (run.root / f"c{number:03}").mkdir(parents=True)
    for number in range(100):
        run.apply(planned(f"c{number:03}", SHARES))
    users: set[str] = set()

    async def work() -> int:
        worker = Worker("files")
        sweeping = asyncio.create_task(records.sweep(run, worker, DEADLINE_S, lambda: users))
        while "c000" in await worker.run(run.keys, DEADLINE_S):
            pass
        users.update(("new", "c299"))
        await worker.run(lambda: run.apply(planned("new", SHARES)), DEADLINE_S)
        left = len(run.keys())
        await sweeping
        return left

    assert asyncio.run(work()) > 10, "it was made before the sweep was over"
    assert run.keys() == {"new", "c299"}
    assert "unused directories removed removed=299 stay=0" in caplog.text
