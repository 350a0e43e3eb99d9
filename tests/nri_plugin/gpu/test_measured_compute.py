"""Compute at each sample: the library's counts, NVML's utilization, and the pause that follows."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gpuslice.contract import names, region_file
from tests.nri_plugin.gpu.measured_node import LABELS, THROTTLED, Node, during, sample


def test_the_use_of_compute_is_read_whether_or_not_nvml_answers(node: Node) -> None:
    node.command = (sys.executable, "-c", "import sys; sys.exit('no driver')")
    node.add("c1", "key-1", 0)
    measuring = node.measuring()
    node.works("key-1", region_file.Compute(throttled_ns=7_000_000_000))
    sample(measuring, 1)
    assert node.metric(THROTTLED, **LABELS) == 0
    long_ago_ns = time.monotonic_ns() - 3_000_000_000
    work = region_file.Compute(throttled_ns=7_000_400_000, unfinished_since_ns=long_ago_ns)
    node.works("key-1", work)
    sample(measuring, 1)
    throttled_s = node.metric(THROTTLED, **LABELS)
    assert throttled_s == pytest.approx(0.0004)
    assert node.metric("gpuslice_long_kernel_containers_total") == 1
    assert node.notices.first() is not None
    node.holds.clear()
    sample(measuring, 1)
    assert node.metric(THROTTLED, **LABELS) is None


def test_unused_gpus_are_measured_less_often(node: Node) -> None:
    node.add("c1", "key-1", 0)
    node.process(11, "c1")
    measuring = node.measuring()

    async def pause_s(held: dict[int, int | None]) -> float:
        node.nvml(held)
        await measuring.sample()
        return measuring.pause_s

    async def work() -> None:
        assert [await pause_s({}), await pause_s({})] == [1, 3]
        assert [await pause_s({11: 5}), await pause_s({})] == [1, 3]
        node.works("key-1", region_file.Compute(busy_ns=1))
        assert [await pause_s({}), await pause_s({})] == [1, 3]
        node.add("c2", "key-2", 0)
        assert await pause_s({}) == 1

    during(measuring, work)


def test_a_truncated_region_has_no_use_of_compute(node: Node) -> None:
    node.add("c1", "key-1", 0)
    file = node.root / "key-1" / names.FILE_REGION
    os.truncate(file, region_file.Geometry(1).compute_offset(0))
    node.nvml({})
    sample(node.measuring(), 2)
    assert node.metric(THROTTLED, **LABELS) == 0
    assert node.metric("gpuslice_containers_not_measured") == 0


def test_nvmls_utilization_is_that_of_the_containers_processes(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.add("c1", "key-1", 0)
    node.process(11, "c1")
    node.process(12, "c1")
    node.process(21, "c2")
    utilization = "gpuslice_container_gpu_nvml_utilization_ratio"
    measuring = node.measuring()

    async def sampled(utilized: dict[int, int] | None) -> float | None:
        node.utilized = utilized
        node.nvml({11: 400, 12: 300, 21: 50})
        await measuring.sample()
        return node.metric(utilization, **LABELS)

    async def work() -> None:
        assert await sampled({11: 20, 12: 9, 21: 60}) == pytest.approx(0.29)
        assert await sampled({21: 60}) == 0
        for _ in range(2):
            assert await sampled(None) is None
        assert await sampled({11: 30}) == pytest.approx(0.3)
        node.holds.clear()
        assert await sampled({11: 30}) is None

    during(measuring, work)
    assert sum("NVML has no utilization" in text for text in caplog.messages) == 1
