"""The metrics of GPU memory: of each container, and of each GPU."""

from __future__ import annotations

import pytest

from gpuslice.gpu.account import Memory
from nri_plugin.gpu.memory_use import MemoryUse
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold, Part
from nri_plugin.policy.model import Gpu, Pod
from tests.support import GIB

GPU, OTHER = "GPU-1", "GPU-2"


def hold(container: str, *uuids: str, key: str = "") -> Hold:
    pod, parts = Pod(f"uid-{container}", "d", "p"), {uuid: Part(2 * GIB, 0) for uuid in uuids}
    name = "d/p" if key else f"d/p/{container}"
    return Hold(container, key or container, pod.uid, container, name, parts, pod)


def memory(used_bytes: int = 0, refused: int = 0) -> Memory:
    return Memory(used_bytes, 2 * GIB, 3, refused)


class Node:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.use = MemoryUse(self.metrics)
        self.gpus = [Gpu(uuid, minor, 80 * GIB) for minor, uuid in enumerate((GPU, OTHER))]
        self.holds = [hold("c1", GPU), hold("c2", GPU, OTHER)]

    def read(self, violations: int = 0, **memories: Memory) -> None:
        read = {key: {GPU: each} for key, each in memories.items()}
        self.use.add(self.gpus, self.holds, read, {key: {GPU: violations} for key in memories})

    def of(self, name: str, container: str = "c1") -> float | None:
        labels = {"namespace": "d", "pod": "p", "container": container, "uuid": GPU}
        return self.metrics.registry.get_sample_value(f"gpuslice_container_gpu_{name}", labels)

    def of_gpus(self, name: str, **labels: str) -> tuple[float | None, ...]:
        value = self.metrics.registry.get_sample_value
        both = (GPU, OTHER)
        return tuple(value(f"gpuslice_gpu_{name}", {"uuid": uuid, **labels}) for uuid in both)

    def unhandled(self, reason: str) -> tuple[float | None, ...]:
        return self.of_gpus("unhandled_containers", reason=reason)

    def events(self) -> tuple[float | None, ...]:
        return self.of("refused_allocations_total"), self.of("limit_violations_total")


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_container_has_its_use_limit_and_overhead(node: Node) -> None:
    node.read(c1=memory(7))
    names = ("used_bytes", "limit_bytes", "overhead_bytes")
    assert [node.of(f"memory_{name}") for name in names] == [7, 2 * GIB, 3]
    node.read()
    assert node.of("memory_used_bytes") == 7, "a reading that failed"


def test_refusals_count_since_the_agent_began_and_violations_too(node: Node) -> None:
    node.read(c1=memory(refused=90))
    assert node.events() == (0, 0), "it may have run before the agent"
    node.read(1, c1=memory(refused=92))
    assert node.events() == (2, 1)
    node.read(2, c1=memory(refused=94))
    assert node.events() == (4, 2)
    node.read()
    node.read(4, c1=memory(refused=95))
    assert node.events() == (5, 4)
    node.holds.clear()
    node.read()
    assert node.events() == (None, None)
    node.holds.append(hold("c1", GPU))
    node.read(1, c1=memory(refused=90))
    assert node.events() == (0, 1), "another container, above its limit at the first sample"


@pytest.mark.parametrize(("after", "counted"), [(0, 0), (2**64 - 1, 100_000_000)])
def test_a_tenant_may_write_any_count(node: Node, after: int, counted: int) -> None:
    node.read(c1=memory(refused=90))
    node.read(c1=memory(refused=after))
    assert node.events() == (counted, 0)


def test_a_gpu_has_its_total_and_what_is_granted_and_used(node: Node) -> None:
    node.holds += [hold("c3", GPU, key="shared"), hold("c4", GPU, key="shared")]
    node.read(c1=memory(5), c2=memory(6), shared=memory(7))
    assert node.of_gpus("memory_total_bytes") == (80 * GIB, 80 * GIB)
    assert node.of_gpus("memory_granted_bytes") == (6 * GIB, 2 * GIB), "a shared grant counts once"
    assert node.of_gpus("memory_used_bytes") == (18, 0)
    node.holds.clear()
    node.read()
    assert node.of_gpus("memory_granted_bytes") == node.of_gpus("memory_used_bytes") == (0, 0)
    del node.gpus[0]
    node.read()
    assert node.of_gpus("memory_total_bytes") == (None, 80 * GIB)


def test_a_container_without_a_figure_or_without_a_share_is_unhandled(node: Node) -> None:
    strangers = {GPU: {"a", "b"}, OTHER: set[str]()}
    node.read()
    node.use.show({"c1": {GPU: 0}, "c2": {GPU: 0, OTHER: 0}}, strangers, ())
    assert (node.unhandled("no_share"), node.unhandled("not_measured")) == ((2, 0), (0, 0))
    node.use.show({"c1": {GPU: None}, "c2": {}}, strangers, {GPU})
    assert (node.unhandled("no_share"), node.unhandled("not_measured")) == ((0, 0), (2, 1))
    node.use.show({}, {}, ())
    assert node.unhandled("no_share") == node.unhandled("not_measured") == (None, None)
