"""The metrics of compute and the notice of long kernels, from readings as measuring.py takes
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpuslice.contract import names
from gpuslice.contract.region_file import Compute
from gpuslice.gpu.account import Use
from nri_plugin.gpu.compute_use import ComputeUse, Reading, increase, share_over
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

    def read(self, at_ns: int, **uses: Use | Compute) -> None:
        readings: Mapping[str, Reading] = {
            key: Reading(at_ns, {GPU: Use(each) if isinstance(each, Compute) else each})
            for key, each in uses.items()
        }
        self.use.add(self.holds, readings)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"gpuslice_{name}", labels)

    def of(self, container: str, name: str, **labels: str) -> float | None:
        """A container's metric."""
        found = {"namespace": "d", "pod": "p", "container": container, "uuid": GPU, **labels}
        return self.metric(f"container_gpu_{name}", **found)

    def increases(self, container: str = "main-c1") -> tuple[float | None, ...]:
        counted = ("throttled", "busy", "turn_idle")
        return tuple(self.of(container, f"{name}_seconds_total") for name in counted)

    def shares(self, container: str = "main-c1") -> tuple[float | None, ...]:
        return tuple(self.of(container, "share_ratio", window=each) for each in ("1s", "10s"))

    def series(self) -> int:
        """The number of all containers'."""
        return sum(
            len(family.samples)
            for family in self.metrics.registry.collect()
            if family.name.startswith("gpuslice_container_gpu_")
        )


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_containers_did_since_the_agent_began(node: Node) -> None:
    node.read(10 * S, c1=Compute(throttled_ns=9 * S, busy_ns=9 * S), c2=Compute())
    assert node.increases() == (0, 0, 0), "it may have run before the agent"
    assert node.shares() == (None, None)
    node.read(
        12 * S,
        c1=Use(Compute(throttled_ns=11 * S, busy_ns=9 * S + S // 2), turn_idle_ns=S // 10),
        c2=Compute(throttled_ns=S, busy_ns=S),
    )
    assert node.increases() == (2, 0.5, 0.1)
    assert node.increases("main-c2") == (1, 1, 0)
    assert (node.shares(), node.shares("main-c2")) == ((0.25, 0.25), (0.5, 0.5))


def test_shares_of_the_last_second_and_of_the_last_ten(node: Node) -> None:
    """30 percent for 20 seconds, then nothing for 4; readings come some milliseconds late."""
    for second in range(25):
        busy_ns = min(second, 20) * 3 * S // 10
        node.read((100 + second) * S + second % 3 * 10_000_000, c1=Compute(busy_ns=busy_ns))
        if second == 20:
            assert node.shares() == pytest.approx((0.3, 0.3), abs=0.01)
    assert node.shares() == pytest.approx((0, 0.18), abs=0.01)


@pytest.mark.parametrize(("percent", "ratio"), [(30, 0.3), (100, None), (0, None)])
def test_a_request_is_what_the_grant_has(node: Node, percent: int, ratio: float | None) -> None:
    node.read(10 * S, c1=Use(Compute(), 50))
    node.read(11 * S, c1=Use(Compute(), percent))
    assert node.of("main-c1", "request_ratio") == ratio


def test_without_checked_launches_no_share_is_measured(node: Node) -> None:
    node.read(10 * S, c1=Compute())
    node.read(11 * S, c1=Compute(busy_ns=S))
    assert node.shares() == (1, 1)
    node.read(12 * S, c1=Use(Compute(busy_ns=S), checked=False))
    assert node.shares() == (None, None)
    assert node.increases() == (0, 1, 0)


def test_the_series_of_a_removed_container_are_removed(node: Node) -> None:
    node.read(10 * S, c1=Use(Compute(), 30), c2=Compute())
    node.read(11 * S, c1=Use(Compute(busy_ns=S, throttled_ns=S), 30), c2=Compute())
    node.use.utilization(node.holds, {GPU: {7: 90}}, {"c1": {7}})
    assert node.of("main-c1", "nvml_utilization_ratio") == 0.9
    node.holds.pop(0)
    node.read(12 * S, c2=Compute())
    assert node.increases() == node.increases("gone") == (None, None, None)
    assert node.increases("main-c2") == (0, 0, 0)
    node.holds.clear()
    node.read(13 * S)
    node.use.utilization((), {}, {})
    assert node.series() == 0
    node.holds.append(hold("c1"))
    node.read(14 * S, c1=Compute(throttled_ns=90 * S))
    assert node.increases() == (0, 0, 0), "another container's file"


def test_a_reading_that_failed_is_made_up_for(node: Node) -> None:
    node.read(10 * S, c1=Compute())
    node.read(11 * S)
    node.read(12 * S, c1=Compute(throttled_ns=S, busy_ns=S))
    assert (node.increases(), node.shares()) == ((1, 1, 0), (0.5, 0.5))
    node.read(13 * S)
    assert (node.increases(), node.shares()) == ((1, 1, 0), (0.5, 0.5))


@pytest.mark.parametrize(
    ("counts", "idle_s"),
    [((0, S // 10, 3600 * S, S // 2), 1.6), ((5 * S, 6 * S, S // 2, S), 2)],
    ids=["more than time", "another arbiter"],
)
def test_turns_are_idle_for_no_longer_than_time_passes(
    node: Node, counts: Sequence[int], idle_s: float
) -> None:
    for second, idle_ns in enumerate(counts):
        node.read(second * S, c1=Use(Compute(), turn_idle_ns=idle_ns))
    assert node.increases() == (0, 0, idle_s)


def test_containers_that_share_a_grant_have_one_series(node: Node) -> None:
    shared = replace(hold("c1", "pod-u"), container_key="d/p")
    node.holds = [shared, replace(shared, container_id="c2")]
    node.read(10 * S, **{"pod-u": Compute(unfinished_since_ns=8 * S)})
    assert node.increases("") == (0, 0, 0)
    assert node.metric("long_kernel_containers_total") == 1


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Compute(throttled_ns=2**64 - 1, busy_ns=2**64 - 1), (4096, 1, 0)),
        (Compute(), (0, 0, 0)),
        (Compute(throttled_ns=100 * S, busy_ns=100 * S), (0, 0, 0)),
    ],
    ids=["too much", "less than before", "the same"],
)
def test_a_tenant_may_write_anything(after: Compute, expected: tuple[float, float, float]) -> None:
    before = Reading(10 * S, {GPU: Use(Compute(throttled_ns=100 * S, busy_ns=100 * S))})
    now = Reading(11 * S, {GPU: Use(after)})
    assert increase(before, now, GPU) == expected
    assert share_over(1, [before, now], GPU) == expected[1]
    assert increase(now, now, GPU) == (0, 0, 0) and share_over(1, [now, now], GPU) == 0
    assert increase(Reading(9 * S, {}), now, GPU) == (0, 0, 0), "a GPU that is new"


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
    assert "their excess is deducted from later windows" in notice.text
    node.notices.done(notice)
    assert node.notices.first() is None
    assert node.metric("long_kernel_containers_total") == 1
    said = [text for text in caplog.messages if text.startswith("LimitNotEnforceable")]
    assert len(said) == 1 and "key=c1" in said[0] and "gpu=GPU-1" in said[0]
    node.read(13 * S, c1=long, c2=long)
    assert node.metric("long_kernel_containers_total") == 2


@pytest.mark.parametrize("since_ns", [0, 9 * S, 10 * S, 2**64 - 1])
def test_what_is_no_long_kernel(node: Node, since_ns: int) -> None:
    node.read(10 * S, c1=Compute(unfinished_since_ns=since_ns))
    assert node.notices.first() is None
    assert node.metric("long_kernel_containers_total") == 0
