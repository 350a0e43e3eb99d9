"""The GPU inventory by NVML's real process, over simulated GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.gpu.inventory import Inventory
from tests.nri_plugin.gpu.deadlines import Deadlines
from tests.nri_plugin.gpu.inventory_scene import HOUR_NS
from tests.simgpu.host import GIB, Host
from tests.support import Clock, until_async


def over(host: Host, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it while the host's driver runs."""
    host.up()
    try:
        asyncio.run(work())
    finally:
        host.down()


@pytest.mark.sim
def test_a_gpu_in_trouble_is_named_and_not_offered(build_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "host.toml"
    text = (
        '[[gpu]]\nuuid = "GPU-00000000-0000-0000-0000-00000000000{0}"\nminor = {0}\n'
        'memory = "1Gi"\n{1}'
    )
    mig = 'mig_uuid = "MIG-00000000-0000-0000-0000-000000000009"\n'
    config.write_text("".join(text.format(n, mig if n == 1 else "") for n in range(3)))
    host = Host(tmp_path / "sim", ("--config", config), build_dir)

    async def work() -> None:
        gpus = Inventory(host.env(), deadline_s=60, min_interval_s=0, now=Clock())
        await gpus.refresh()
        assert [gpu.minor for gpu in gpus.gpus] == [0, 2]
        assert "MIG mode is enabled" in gpus.seen[1].problem
        assert gpus.seen[1].memory_bytes == GIB and gpus.seen[1].bus_id
        whole = gpus.seen
        for action, problem in (("reset", "recovery: reset the GPU"), ("none", "")):
            host.fault("recovery", action)
            await gpus.refresh()
            assert problem in gpus.seen[0].problem
        host.fault("lose", gpu=2)
        for _ in range(2):
            await gpus.refresh()
            # It does not even report its name any more.
            assert gpus.gpus == whole[:1]
            assert gpus.seen[2] == replace(whole[2], problem="GPU is lost")
        await gpus.close()

    over(host, work)


@pytest.mark.sim
def test_one_gpu_that_hangs_in_the_driver_is_one_unhealthy_gpu(
    build_dir: Path, tmp_path: Path
) -> None:
    """The real child over the simulated driver: the GPU's calls take an hour, then none again."""
    host = Host(tmp_path / "sim", ("--gpu", str(GIB), "--gpu", str(2 * GIB)), build_dir)

    async def work() -> None:
        clock = Clock()
        gpus = Inventory(host.env(), deadline_s=60, min_interval_s=0, now=clock)
        deadlines = Deadlines(gpus.nvml)
        await gpus.refresh()
        healthy = gpus.seen
        assert [gpu.memory_bytes for gpu in gpus.gpus] == [GIB, 2 * GIB]
        host.fault("latency", "MEMORY_INFO", HOUR_NS, gpu=1)
        looking = asyncio.create_task(gpus.refresh())
        await until_async(lambda: deadlines.heard(0))
        deadlines.expire()
        await looking
        assert (gpus.gpus, gpus.problem) == (healthy[:1], None)
        for _ in range(3):
            await gpus.refresh()
            assert gpus.gpus == healthy[:1]
            answers = await gpus.nvml.ask("processes")
            assert answers.lines[0]["uuid"] == healthy[0].uuid
        await gpus.close()
        host.fault("latency", "MEMORY_INFO", "0", gpu=1)
        await gpus.refresh()
        assert gpus.gpus == healthy
        await gpus.close()

    over(host, work)
