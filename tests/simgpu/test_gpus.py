"""The simulated GPU without a daemon: memory, owners, channels. Tests pass the present time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpu import board, config
from simgpu.gpus import SECOND_NS, Gpu, GpuError
from simgpu.wire import Status
from tests.simgpu.host import PLAIN

# A GPU of only 1 MiB.
HOST = replace(config.load(PLAIN), granule_bytes=512).with_gpus([1 << 20])
TOTAL = 1 << 20


def gpu_of(**changes: object) -> Gpu:
    return shared_gpu(**changes)[0]


def shared_gpu(**changes: object) -> tuple[Gpu, Any]:
    """Return a GPU, and the memory through which programs submit work to it."""
    host = replace(HOST, **changes)  # type: ignore[arg-type]
    memory = bytearray(board.SHARED_BYTES)
    gpu = Gpu(host, host.gpus[0], board.Board(host, memory))
    return gpu, board.STRUCTS["sim_shared"].from_buffer(memory)


def refused(status: Status) -> pytest.RaisesExc[GpuError]:
    return pytest.RaisesExc(GpuError, match=status.name, check=lambda error: error.status is status)


def test_nvml_lists_what_a_process_has() -> None:
    """A process's figure includes its contexts, code and allocations. Memory that processes share
    counts for the first of them only."""
    gpu = gpu_of(context_overhead_bytes=1024)
    one, two = gpu.join(11), gpu.join(22)
    contexts = [gpu.context_create(client)[0] for client in (one, two)]
    shared = gpu.memory_alloc(one, contexts[0], 4096)
    gpu.memory_alloc(two, 0, 512)
    token = gpu.memory_export(one, shared)
    first, _ = gpu.memory_import(two, contexts[1], token)
    again, _ = gpu.memory_import(two, 0, token)
    assert gpu.used_bytes == 2 * 1024 + 4096 + 512
    assert gpu.processes() == [(1024 + 4096, 11, 1), (1024 + 512, 22, 1)]
    gpu.memory_free(one, shared)
    assert gpu.processes() == [(1024, 11, 1), (1024 + 512 + 4096, 22, 1)]
    gpu.memory_free(two, first)
    gpu.memory_free(two, again)
    assert gpu.processes() == [(1024, 11, 1), (1024 + 512, 22, 1)]
    assert gpu.used_bytes == 2 * 1024 + 512


def test_two_clients_share_the_pool_and_own_their_parts() -> None:
    gpu = gpu_of()
    one, two = gpu.join(1), gpu.join(2)
    (context_one, _), (context_two, _) = gpu.context_create(one), gpu.context_create(two)
    mine = gpu.memory_alloc(one, context_one, TOTAL // 2)
    gpu.memory_alloc(two, context_two, TOTAL // 2)
    with refused(Status.OUT_OF_MEMORY):
        gpu.memory_alloc(two, context_two, 1)
    for theft in (
        lambda: gpu.memory_free(two, mine),
        lambda: gpu.memory_alloc(two, context_one, 1),
        lambda: gpu.context_destroy(two, context_one, 0),
    ):
        with refused(Status.NOT_FOUND):
            theft()
    gpu.memory_free(one, mine)
    with refused(Status.NOT_FOUND):
        gpu.memory_free(one, mine)
    gpu.memory_alloc(two, context_two, TOTAL // 2)


def test_a_channel_is_given_again_once_its_work_is_dropped() -> None:
    gpu, shared = shared_gpu()
    one, two = gpu.join(1), gpu.join(2)
    (context, first), (_, second), (_, third) = (gpu.context_create(one) for _ in range(3))
    assert (first, second, third) == (0, 1, 2)
    shared.channels[first].submitted[1] = 1
    gpu.context_destroy(one, context, 7)
    assert shared.channels[first].ended_ns == 7
    assert gpu.context_create(two)[1] == 3
    shared.channels[first].completed[1] = 1
    assert gpu.context_create(two)[1] == 0
    assert shared.channels[first].ended_ns == 0
    gpu.leave(one, 9)
    assert [shared.channels[index].ended_ns for index in range(4)] == [0, 9, 9, 0]


def test_a_gpu_has_a_limit_of_contexts() -> None:
    gpu = gpu_of(context_overhead_bytes=0)
    client = gpu.join(1)
    for _ in range(board.CHANNELS):
        gpu.context_create(client)
    with refused(Status.OUT_OF_MEMORY):
        gpu.context_create(client)


def test_utilization_is_the_share_of_the_second_before_the_last_look() -> None:
    gpu, shared = shared_gpu()
    _, channel = gpu.context_create(gpu.join(7))
    shared.board.now_ns = 100 * SECOND_NS
    assert gpu.utilization() == (0, 0)
    last = 100 * SECOND_NS // board.BUCKET_NS
    for rows in (shared.board.busy, shared.channels[channel].busy):
        for bucket in range(last - 15, last):
            rows[bucket % board.BUCKETS] = board.STRUCTS["sim_busy"](bucket, board.BUCKET_NS)
    assert gpu.utilization() == (25, 12)
    assert gpu.process_utilization() == [(7, 25)]
    shared.board.now_ns = 101 * SECOND_NS
    assert gpu.utilization() == (0, 0)


def test_only_the_holders_exit_frees_the_lock() -> None:
    memory = bytearray(board.SHARED_BYTES)
    ours, shared = board.Board(HOST, memory), board.STRUCTS["sim_shared"].from_buffer(memory)
    shared.board.lock = 5 | board.LOCK_WAITERS
    ours.release(6)
    assert shared.board.lock == 5 | board.LOCK_WAITERS
    ours.release(5)
    assert shared.board.lock == 0


def test_shared_memory_whose_last_holder_exits_lingers() -> None:
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
