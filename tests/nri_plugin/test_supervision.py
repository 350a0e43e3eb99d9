"""A task that ends is started again: at once, or after a growing pause if it failed."""

from __future__ import annotations

import asyncio

import pytest

from nri_plugin.supervision import supervised
from tests.support import Clock, until_async

PAUSES = {"first_pause_s": 0.001, "longest_pause_s": 0.002}


@pytest.mark.parametrize("took_s", [0, 1])
async def test_a_task_that_ends_is_started_again(
    took_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails four times, the last time after it ran for `took_s`; then it returns."""
    starts, clock = 0, Clock()

    async def work() -> None:
        nonlocal starts
        starts += 1
        await asyncio.sleep(0)
        clock.seconds += took_s if starts == 4 else 0
        if starts <= 4:
            raise KeyError("any bug")

    task = asyncio.create_task(supervised("part", work, **PAUSES, now=clock))
    await until_async(lambda: starts > 6)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    lines = [text for text in caplog.messages if "task=part" in text]
    pauses = [line.rpartition("again_in_s=")[2].split()[0] for line in lines]
    assert pauses == ["0.001", "0.002", "0.002", "0.001" if took_s else "0.002"]
    assert "KeyError" in caplog.text
