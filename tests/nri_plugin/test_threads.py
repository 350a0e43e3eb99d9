"""Work in threads beside the event loop, also jobs that never return, and tasks that end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from nri_plugin.supervision import supervised
from nri_plugin.threads import ThreadPool, Worker
from tests.support import Clock, until_async


async def test_what_is_posted_or_late_keeps_its_place() -> None:
    worker, gate, order = Worker("w"), threading.Event(), list[int]()

    def slow() -> None:
        gate.wait()
        order.append(1)

    with pytest.raises(TimeoutError):
        await worker.run(slow, 0.01)
    worker.post(lambda: order.append(2))
    last = asyncio.create_task(worker.run(lambda: order.append(3), 60))
    await asyncio.sleep(0)
    gate.set()
    await last
    assert order == [1, 2, 3]


async def test_the_exception_of_a_job_is_raised() -> None:
    def fail() -> None:
        raise KeyError("any bug")

    for running in (Worker("w").run(fail, 5), ThreadPool("c", 1, 1).run(fail, 5, "one")):
        with pytest.raises(KeyError):
            await running


async def test_an_owners_jobs_that_hang_keep_its_places_and_no_others() -> None:
    crew = ThreadPool("c", 3, 2)
    for _ in range(2):
        gate = threading.Event()
        stuck = [asyncio.create_task(crew.run(gate.wait, 60, "one")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await crew.run(lambda: True, 60, "one")
        assert await crew.run(lambda: True, 60, "another")
        stuck.append(asyncio.create_task(crew.run(gate.wait, 60, "another")))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await crew.run(lambda: True, 60, "a third")
        gate.set()
        assert await asyncio.gather(*stuck) == [True] * 3


HANGS = """
import asyncio, threading
from nri_plugin.threads import ThreadPool, Worker
async def main():
    await {}
try:
    asyncio.run(main())
except TimeoutError:
    print('ended')
"""


@pytest.mark.parametrize("threads", ["Worker('w').run(", "ThreadPool('p', 1, 1).run(owner='a', "])
def test_a_hanging_job_does_not_keep_the_process(threads: str) -> None:
    program = HANGS.format(f"{threads}job=threading.Event().wait, deadline_s=0.01)")
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "ended\n"


@pytest.mark.parametrize("took_s", [0, 0.004])
async def test_a_task_that_ends_is_started_again(
    took_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The task fails four times, the last time after it ran for `took_s`. Then it returns."""
    starts, clock = 0, Clock()
    clock.seconds = 0.0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0)
        clock.seconds += took_s if starts == 4 else 0
        if starts <= 4:
            raise KeyError("any bug")

    task = asyncio.create_task(
        supervised("part", work, first_pause_s=0.001, longest_pause_s=0.004, now=clock)
    )
    await until_async(lambda: starts > 6)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    lines = [text for text in caplog.messages if "task=part" in text]
    pauses = [line.rpartition("again_in_s=")[2].split()[0] for line in lines]
    assert pauses == ["0.001", "0.002", "0.004", "0.001" if took_s else "0.004"]
    assert "KeyError" in caplog.text
