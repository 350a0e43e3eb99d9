"""The GPUs' core: pool, ownership, engine. Time is a number here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu import config
from simgpu.gpus import SECOND_NS, Gpu, GpuError
from simgpu.wire import DURATION_DEFAULT, Status
from tests.simgpu.host import PLAIN

# Small figures, the same rules.
HOST = replace(config.load(PLAIN), granule_bytes=512).with_gpus([1 << 20])
TOTAL = 1 << 20
MS = 10**6


def gpu_of(**changes: object) -> Gpu:
    host = replace(HOST, **changes)  # type: ignore[arg-type]
    return Gpu(host, host.gpus[0])


def refused(status: Status) -> pytest.RaisesExc[GpuError]:
    return pytest.RaisesExc(GpuError, match=status.name, check=lambda error: error.status is status)


@pytest.mark.parametrize("counts", [False, True])
def test_nvml_lists_what_a_process_has(counts: bool) -> None:
    """Contexts, code and allocations, and shared memory once for each process that has it, or for
    the first alone; the GPU has it once."""
    gpu = gpu_of(context_overhead_bytes=1024, nvml_counts_imports=counts)
    one, two = gpu.join(11), gpu.join(22)
    contexts = [gpu.context_create(client) for client in (one, two)]
    shared = gpu.memory_alloc(one, contexts[0], 4096)
    gpu.memory_alloc(two, 0, 512)
    token = gpu.memory_export(one, shared)
    first, _ = gpu.memory_import(two, contexts[1], token)
    again, _ = gpu.memory_import(two, 0, token)
    assert gpu.used_bytes == 2 * 1024 + 4096 + 512
    imported = 4096 if counts else 0
    assert gpu.processes() == [(11, 1024 + 4096, 1), (22, 1024 + 512 + imported, 1)]
    gpu.memory_free(one, shared)
    assert gpu.processes() == [(11, 1024, 1), (22, 1024 + 512 + 4096, 1)]
    gpu.memory_free(two, first)
    gpu.memory_free(two, again)
    assert gpu.processes() == [(11, 1024, 1), (22, 1024 + 512, 1)]
    assert gpu.used_bytes == 2 * 1024 + 512


def test_two_clients_share_the_pool_and_own_their_parts() -> None:
    gpu = gpu_of()
    one, two = gpu.join(1), gpu.join(2)
    context_one, context_two = gpu.context_create(one), gpu.context_create(two)
    mine = gpu.memory_alloc(one, context_one, TOTAL // 2)
    gpu.memory_alloc(two, context_two, TOTAL // 2)
    with refused(Status.OUT_OF_MEMORY):
        gpu.memory_alloc(two, context_two, 1)
    for theft in (
        lambda: gpu.memory_free(two, mine),
        lambda: gpu.memory_alloc(two, context_one, 1),
        lambda: gpu.context_destroy(two, context_one),
        lambda: gpu.launch(two, context_one, 1, 0),
    ):
        with refused(Status.NOT_FOUND):
            theft()
    gpu.memory_free(one, mine)
    with refused(Status.NOT_FOUND):
        gpu.memory_free(one, mine)
    gpu.memory_alloc(two, context_two, TOTAL // 2)


def test_the_engine_serves_in_order() -> None:
    gpu = gpu_of()
    one, two = gpu.join(1), gpu.join(2)
    context_one, context_two = gpu.context_create(one), gpu.context_create(two)
    assert gpu.launch(one, context_one, 5 * MS, now_ns=0) == 5 * MS
    assert gpu.launch(two, context_two, 3 * MS, now_ns=1 * MS) == 8 * MS
    assert gpu.launch(one, context_one, 0, now_ns=2 * MS) == 8 * MS
    assert gpu.launch(one, context_one, 1 * MS, now_ns=20 * MS) == 21 * MS
    assert gpu.launch(two, context_two, DURATION_DEFAULT, now_ns=30 * MS) == (
        30 * MS + HOST.launch_default_ns
    )


def test_a_dead_clients_queued_work_does_not_hold_the_engine() -> None:
    gpu = gpu_of()
    one, two = gpu.join(1), gpu.join(2)
    context_two = gpu.context_create(two)
    gpu.launch(one, gpu.context_create(one), 100 * SECOND_NS, now_ns=0)
    gpu.leave(one, now_ns=1 * SECOND_NS)
    assert gpu.launch(two, context_two, MS, now_ns=1 * SECOND_NS) == 1 * SECOND_NS + MS


def test_utilization_is_the_share_of_the_last_second() -> None:
    gpu = gpu_of()
    client = gpu.join(1)
    context = gpu.context_create(client)
    assert gpu.utilization(5 * SECOND_NS) == (0, 0)
    gpu.launch(client, context, 250 * MS, now_ns=5 * SECOND_NS)
    assert gpu.utilization(5 * SECOND_NS + 250 * MS) == (25, 12)
    assert gpu.utilization(6 * SECOND_NS) == (25, 12)
    assert gpu.utilization(6 * SECOND_NS + 125 * MS) == (12, 6)
    assert gpu.utilization(7 * SECOND_NS) == (0, 0)


def test_shared_memory_whose_last_holder_dies_lingers() -> None:
    gpu = gpu_of(teardown_delay_s=1.0)
    one, two = gpu.join(1), gpu.join(2)
    token = gpu.memory_export(one, gpu.memory_alloc(one, 0, 512))
    gpu.memory_import(two, 0, token)
    gpu.memory_import(two, 0, token)
    gpu.leave(one, 0)
    gpu.tick(2 * SECOND_NS)
    assert gpu.used_bytes == 512
    gpu.leave(two, 2 * SECOND_NS)
    with refused(Status.NOT_FOUND):
        gpu.memory_import(gpu.join(3), 0, token)
    assert gpu.used_bytes == 512
    gpu.tick(3 * SECOND_NS)
    assert gpu.used_bytes == 0
