"""The record of GPUs: written by the agent that serves, valid until the driver is loaded again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nri_plugin.gpu.record import FILE, Record, load_id
from nri_plugin.policy.model import Gpu
from tests.support import until_async

GPUS = (Gpu("GPU-1", 0, 5, index=0, problem="MIG mode is enabled"), Gpu("GPU-2", 1, 6, index=1))


async def _written(path: Path, text: str) -> None:
    await until_async(lambda: (path / FILE).exists() and text in (path / FILE).read_text())


async def test_what_is_kept_outlasts_the_agent(tmp_path: Path) -> None:
    record = Record(tmp_path, "boot 1")
    record.keep(gpus=GPUS, xids={"GPU-1": 79}, contexts={"580 A": 7})
    assert os.listdir(tmp_path) == [], "another agent may serve the node"
    record.begin()
    await _written(tmp_path, "580 A")
    again = Record(tmp_path, "boot 1")
    assert (again.gpus, again.xids, again.contexts) == (GPUS, {"GPU-1": 79}, {"580 A": 7})
    other = Record(tmp_path, "boot 2")
    assert (other.gpus, other.xids, other.contexts) == ((), {}, {"580 A": 7})


async def test_an_agent_takes_over_what_the_one_before_it_wrote(tmp_path: Path) -> None:
    """It read the file at its start, and waited for the other one's end."""
    first, second = Record(tmp_path, "boot"), Record(tmp_path, "boot")
    first.begin()
    first.keep(gpus=GPUS, xids={"GPU-1": 79}, contexts={"580 A": 7})
    await _written(tmp_path, "580 A")
    second.keep(gpus=GPUS[1:], xids={"GPU-2": 48})
    second.begin()
    assert second.gpus == GPUS[1:]
    assert (second.xids, second.contexts) == ({"GPU-1": 79, "GPU-2": 48}, {"580 A": 7})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "5", "{}"),
        '{"load": "b", "gpus": [{"uuid": 1}], "xids": {}, "contexts": {}}',
        '{"gpus": [], "xids": {}, "contexts": {}}',
    ],
)
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    record = Record(tmp_path, "b")
    assert (record.gpus, record.xids, record.contexts) == ((), {}, {})


def test_the_load_is_named_by_boot() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert load_id().split()[0] == boot == json.loads(json.dumps(boot))
