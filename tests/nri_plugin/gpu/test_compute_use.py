"""The metrics of compute and the notice of long kernels, from readings as measuring.py takes
them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from contract import names
from contract.region_file import Compute
from nri_plugin.gpu.compute_use import ComputeUse, Reading, use_between
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices

GPU = "GPU-1"
S = 1_000_000_000


def hold(container_id: str, key: str = "", uid: str = "u") -> Hold:
    name = f"main-{container_id}"
    return Hold(container_id, key or container_id, uid, name, f"d/p/{name}", {}, Pod(uid, "d", "p"))


class Node:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.notices = Notices()
        self.use = ComputeUse(self.metrics, self.notices)
        self.holds = [hold("c1"), hold("c2", uid="v")]

    def read(self, at_ns: int, **work: Compute) -> None:
        readings: Mapping[str, Reading] = {
            key: Reading(at_ns, {GPU: each}) for key, each in work.items()
        }
        self.use.add(self.holds, readings)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"gpuslice_{name}", labels)

    @property
    def throttled_s(self) -> float | None:
        return self.metric("compute_throttled_seconds_total", uuid=GPU)

    @property
    def busy(self) -> float | None:
        return self.metric("compute_busy_ratio", uuid=GPU)


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_containers_did_is_summed_by_gpu(node: Node) -> None:
    node.read(10 * S, c1=Compute(throttled_ns=9 * S, busy_ns=9 * S), c2=Compute())
    assert (node.throttled_s, node.busy) == (0, 0), "it may have run before the agent"
    node.read(
        12 * S,
        c1=Compute(throttled_ns=11 * S, busy_ns=9 * S + S // 2),
        c2=Compute(throttled_ns=S, busy_ns=S),
    )
    assert (node.throttled_s, node.busy) == (3, 0.75)


def test_a_busy_gpu_is_busy_once(node: Node) -> None:
    """A container's processes may work at the same time, and so may containers."""
    node.read(10 * S, c1=Compute(), c2=Compute())
    node.read(11 * S, c1=Compute(busy_ns=3 * S), c2=Compute(busy_ns=S // 2))
    assert node.busy == 1


def test_a_container_that_is_gone_takes_its_gpu_along(node: Node) -> None:
    node.read(10 * S, c1=Compute(), c2=Compute())
    node.read(11 * S, c1=Compute(busy_ns=S, throttled_ns=S), c2=Compute())
    node.holds.clear()
    node.read(12 * S)
    assert (node.throttled_s, node.busy) == (1, None)
    node.holds.append(hold("c1"))
    node.read(13 * S, c1=Compute(throttled_ns=90 * S))
    assert node.throttled_s == 1, "another container's file"


def test_a_reading_that_failed_is_made_up_for(node: Node) -> None:
    node.read(10 * S, c1=Compute())
    node.read(11 * S)
    node.read(12 * S, c1=Compute(throttled_ns=S, busy_ns=S))
    assert (node.throttled_s, node.busy) == (1, 0.5)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Compute(throttled_ns=2**64 - 1, busy_ns=2**64 - 1), (names.MAX_SLOTS, 1)),
        (Compute(), (0, 0)),
        (Compute(throttled_ns=100 * S, busy_ns=100 * S), (0, 0)),
    ],
    ids=["too much", "less than before", "the same"],
)
def test_a_tenant_may_write_anything(after: Compute, expected: tuple[float, float]) -> None:
    before = Reading(10 * S, {GPU: Compute(throttled_ns=100 * S, busy_ns=100 * S)})
    assert use_between(before, Reading(11 * S, {GPU: after}), GPU) == expected


def test_two_readings_at_once_and_a_gpu_that_is_new() -> None:
    now = Reading(10 * S, {GPU: Compute(busy_ns=S)})
    assert use_between(now, now, GPU) == (0, 0)
    assert use_between(Reading(9 * S, {}), now, GPU) == (0, 0)


def test_a_long_kernel_is_reported_once_per_container(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    long = Compute(unfinished_since_ns=8 * S)
    for at_ns in (10 * S, 11 * S, 12 * S):
        node.read(at_ns, c1=long, c2=Compute())
    notice = node.notices.first()
    assert notice is not None
    assert (notice.pod.uid, notice.reason) == ("u", names.EVENT_LIMIT_NOT_ENFORCEABLE)
    assert notice.text.startswith("GPU-1, used by d/p/main-c1: ")
    assert "kernels of more than a second cannot be interrupted" in notice.text
    assert "their excess is deducted from later turns" in notice.text
    node.notices.done(notice)
    assert node.notices.first() is None
    assert node.metric("long_kernel_containers_total") == 1
    said = [text for text in caplog.messages if text.startswith("LimitNotEnforceable")]
    assert len(said) == 1 and "key=c1" in said[0] and "gpu=GPU-1" in said[0]
    node.read(13 * S, c1=long, c2=long)
    assert node.metric("long_kernel_containers_total") == 2


def test_containers_that_share_a_grant_are_reported_together(node: Node) -> None:
    node.holds = [hold("c1", "pod-u"), hold("c2", "pod-u")]
    node.read(10 * S, **{"pod-u": Compute(unfinished_since_ns=8 * S)})
    assert node.metric("long_kernel_containers_total") == 1


@pytest.mark.parametrize("since_ns", [0, 9 * S, 10 * S, 2**64 - 1])
def test_what_is_no_long_kernel(node: Node, since_ns: int) -> None:
    node.read(10 * S, c1=Compute(unfinished_since_ns=since_ns))
    assert node.notices.first() is None
    assert node.metric("long_kernel_containers_total") == 0
