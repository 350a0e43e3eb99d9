"""The GPUs' core: pool, ownership, engine. Time is a number here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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


def test_work_that_had_not_begun_goes_with_its_owner() -> None:
    gpu = gpu_of()
    one, two = gpu.join(1), gpu.join(2)
    context = gpu.context_create(one)
    assert gpu.launch(one, context, 10 * MS, now_ns=0) == 10 * MS
    gpu.launch(two, gpu.context_create(two), 100 * SECOND_NS, now_ns=0)
    gpu.leave(two, now_ns=5 * MS)
    assert gpu.launch(one, context, MS, now_ns=5 * MS) == 11 * MS


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


def test_turns_of_two_clients_do_not_grow_the_books_without_bound() -> None:
    gpu = gpu_of()
    clients = [gpu.join(1), gpu.join(2)]
    contexts = [gpu.context_create(client) for client in clients]
    for turn in range(10_000):
        done = gpu.launch(clients[turn % 2], contexts[turn % 2], MS, now_ns=0)
    assert done == 10_000 * MS
    assert len(gpu._engine) <= 4096


def test_a_lost_gpu_answers_nothing_and_lets_the_dead_go() -> None:
    gpu = gpu_of()
    client = gpu.join(1)
    context = gpu.context_create(client)
    allocation = gpu.memory_alloc(client, context, 512)
    gpu.lost = True
    for call in (
        lambda: gpu.context_create(client),
        lambda: gpu.memory_alloc(client, context, 1),
        lambda: gpu.memory_free(client, allocation),
        lambda: gpu.launch(client, context, 1, 0),
        lambda: gpu.memory(),
        lambda: gpu.processes(),
        lambda: gpu.utilization(0),
    ):
        with refused(Status.GPU_LOST):
            call()
    gpu.leave(client, 0)
    assert gpu.used_bytes == 0


def test_shared_memory_lives_while_anybody_holds_it() -> None:
    gpu = gpu_of(teardown_delay_s=1.0)
    one, two = gpu.join(1), gpu.join(2)
    context_one, context_two = gpu.context_create(one), gpu.context_create(two)
    mine = gpu.memory_alloc(one, context_one, 1000)
    token = gpu.memory_export(one, mine)
    assert gpu.memory_export(one, mine) == token
    theirs, charged = gpu.memory_import(two, context_two, token)
    assert (charged, gpu.used_bytes) == (1024, 1024)
    assert gpu.processes() == [(1, 1024, 1), (2, 0, 1)]
    gpu.memory_free(one, mine)
    assert gpu.processes() == [(1, 0, 1), (2, 1024, 1)], "the remaining process has it"
    again, _ = gpu.memory_import(one, 0, token)
    gpu.leave(two, 0)
    assert gpu.used_bytes == 1024
    gpu.memory_free(one, again)
    assert gpu.used_bytes == 0
    for stale in (token, theirs):
        with refused(Status.NOT_FOUND):
            gpu.memory_import(one, 0, stale)


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


class Books(RuleBasedStateMachine):
    """Any order of events: never over the pool, and freed memory is returned exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.gpu = gpu_of(context_overhead_bytes=1000, teardown_delay_s=1.0)
        self.now_ns = 0
        # client -> context -> allocation -> charged bytes; and what lingers until when.
        self.clients: dict[int, dict[int, dict[int, int]]] = {}
        self.lingering: list[tuple[int, int]] = []

    def expected(self) -> int:
        held = sum(
            1000 + sum(allocations.values())
            for contexts in self.clients.values()
            for allocations in contexts.values()
        )
        return held + sum(amount for _, amount in self.lingering)

    @rule(pid=st.integers(1, 3))
    def join(self, pid: int) -> None:
        self.clients[self.gpu.join(pid)] = {}

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(sorted(self.clients)))
            contexts = self.clients.pop(client)
            self.gpu.leave(client, self.now_ns)
            held = sum(1000 + sum(each.values()) for each in contexts.values())
            self.lingering.append((self.now_ns + SECOND_NS, held))

    @rule(data=st.data())
    def context_create(self, data: st.DataObject) -> None:
        if self.clients:
            client = data.draw(st.sampled_from(sorted(self.clients)))
            room = self.expected() + 1000 <= TOTAL
            try:
                context = self.gpu.context_create(client)
            except GpuError:
                assert not room
            else:
                assert room
                self.clients[client][context] = {}

    @rule(data=st.data(), size=st.integers(1, TOTAL))
    def alloc(self, data: st.DataObject, size: int) -> None:
        places = [(c, x) for c, contexts in self.clients.items() for x in contexts]
        if places:
            client, context = data.draw(st.sampled_from(places))
            charged = -(-size // 512) * 512
            room = self.expected() + charged <= TOTAL
            try:
                allocation = self.gpu.memory_alloc(client, context, size)
            except GpuError as error:
                assert not room
                assert error.status is Status.OUT_OF_MEMORY
            else:
                assert room
                self.clients[client][context][allocation] = charged

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        held = [
            (client, context, allocation)
            for client, contexts in self.clients.items()
            for context, allocations in contexts.items()
            for allocation in allocations
        ]
        if held:
            client, context, allocation = data.draw(st.sampled_from(held))
            self.gpu.memory_free(client, allocation)
            del self.clients[client][context][allocation]

    @rule(data=st.data())
    def context_destroy(self, data: st.DataObject) -> None:
        places = [(c, x) for c, contexts in self.clients.items() for x in contexts]
        if places:
            client, context = data.draw(st.sampled_from(places))
            self.gpu.context_destroy(client, context)
            del self.clients[client][context]

    @rule(step_ns=st.integers(0, 2 * SECOND_NS))
    def time_passes(self, step_ns: int) -> None:
        self.now_ns += step_ns
        self.gpu.tick(self.now_ns)
        self.lingering = [entry for entry in self.lingering if entry[0] > self.now_ns]

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.gpu.used_bytes == self.expected()
        assert 0 <= self.gpu.used_bytes <= TOTAL

    def teardown(self) -> None:
        for client in tuple(self.clients):
            self.gpu.leave(client, self.now_ns)
        self.gpu.tick(self.now_ns + SECOND_NS)
        assert self.gpu.used_bytes == 0
        assert self.gpu.clients == 0


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
