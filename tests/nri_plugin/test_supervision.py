"""A task that ends is started again: at once, or after a growing pause if it failed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from nri_plugin.supervision import supervised
from tests.support import Clock, until_async


async def _during(work: object, **options: object) -> asyncio.Task[None]:
    return asyncio.create_task(supervised("part", work, **options))  # type: ignore[arg-type]


async def test_a_task_that_fails_is_logged_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts == 4:
            await asyncio.Event().wait()
        raise KeyError("any bug")

    pauses = {"first_pause_s": 0.001, "longest_pause_s": 0.002}
    task = await _during(work, **pauses, now=Clock())
    await until_async(lambda: starts == 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    lines = [text for text in caplog.messages if "task=part" in text]
    assert [line.rpartition("again_in_s=")[2].split()[0] for line in lines] == [
        "0.001",
        "0.002",
        "0.002",
    ]
    assert "KeyError" in caplog.text


async def test_a_task_that_returns_is_started_again_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0)

    task = await _during(work)
    await until_async(lambda: starts > 2)
    task.cancel()
    await asyncio.wait([task])
    assert not caplog.messages
