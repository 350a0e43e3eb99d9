"""The metrics of compute, and the notice of long kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.region_file import Compute
from gpuslice.gpu.account import Use
from nri_plugin.gpu.compute_use import ComputeUse, Reading
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notices

GPU = "GPU-1"
S = 1_000_000_000
NEVER = (None, None)


def hold(container: str) -> Hold:
    pod = Pod(f"uid-{container}", "d", "p")
    return Hold(container, container, pod.uid, container, f"d/p/{container}", {}, pod)


class Node:
    def __init__(self) -> None:
        self.metrics, self.notices = Metrics(), Notices()
        self.use = ComputeUse(self.metrics, self.notices)
        self.holds = [hold("c1"), hold("c2")]

    def read(self, at_s: float, **uses: Use | Compute) -> None:
        readings = {
            key: Reading(round(at_s * S), {GPU: Use(each) if isinstance(each, Compute) else each})
            for key, each in uses.items()
        }
        self.use.add(self.holds, readings)

    def of(self, container: str, name: str, **labels: str) -> float | None:
        found = {"namespace": "d", "pod": "p", "container": container, "uuid": GPU, **labels}
        return self.metrics.registry.get_sample_value(f"gpuslice_container_gpu_{name}", found)

    def increases(self, container: str = "c1") -> tuple[float | None, ...]:
        counted = ("throttled", "busy")
        return tuple(self.of(container, f"{name}_seconds_total") for name in counted)

    def shares(self, container: str = "c1") -> tuple[float | None, ...]:
        return tuple(self.of(container, "share_ratio", window=each) for each in ("1s", "10s"))

    @property
    def long_kernels(self) -> float | None:
        return self.metrics.registry.get_sample_value("gpuslice_long_kernel_containers_total")


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_containers_did_since_the_agent_began(node: Node) -> None:
    node.read(10, c1=Compute(throttled_ns=9 * S, spent_ns=9 * S), c2=Compute())
    assert node.increases() == (0, 0), "it may have run before the agent"
    assert node.shares() == NEVER
    work = Compute(throttled_ns=11 * S, spent_ns=9 * S + S // 2)
    node.read(12, c1=work, c2=Compute(throttled_ns=S, spent_ns=S))
    assert node.increases() == (2, 0.5)
    assert node.increases("c2") == (1, 1)
    assert (node.shares(), node.shares("c2")) == ((0.25, 0.25), (0.5, 0.5))


def test_shares_of_the_last_second_and_of_the_last_ten(node: Node) -> None:
    """A container uses 30 percent for 20 seconds, then nothing for 4. Readings come late."""
    for second in range(25):
        node.read(
            100 + second + second % 3 / 100, c1=Compute(spent_ns=min(second, 20) * 3 * S // 10)
        )
        if second == 20:
            assert node.shares() == pytest.approx((0.3, 0.3), abs=0.01)
    assert node.shares() == pytest.approx((0, 0.18), abs=0.01)


@pytest.mark.parametrize(("percent", "ratio"), [(30, 0.3), (100, None), (0, None)])
def test_a_request_is_what_the_grant_has(node: Node, percent: int, ratio: float | None) -> None:
    node.read(10, c1=Use(Compute(), 50))
    node.read(11, c1=Use(Compute(), percent, policy=Policy.BACKGROUND))
    assert node.of("c1", "request_ratio") == ratio
    assert node.of("c1", "policy_info", policy="background") == 1
    assert node.of("c1", "policy_info", policy="fair") is None


def test_without_checked_launches_no_share_is_measured(node: Node) -> None:
    node.read(10, c1=Compute())
    node.read(11, c1=Compute(spent_ns=S))
    assert node.shares() == (1, 1)
    node.read(12, c1=Use(Compute(spent_ns=S), checked=False))
    assert (node.shares(), node.increases()) == (NEVER, (0, 1))


def test_the_series_of_a_removed_container_are_removed(node: Node) -> None:
    node.read(10, c1=Use(Compute(), 30), c2=Compute())
    node.read(11, c1=Use(Compute(spent_ns=S, throttled_ns=S), 30), c2=Compute())
    node.use.utilization(node.holds, {GPU: {7: 90}}, {"c1": {7}})
    assert node.of("c1", "nvml_utilization_ratio") == 0.9
    del node.holds[0]
    node.read(12, c2=Compute())
    assert node.increases() == node.increases("gone") == (None, None)
    assert node.increases("c2") == (0, 0)
    node.holds.clear()
    node.read(13)
    node.use.utilization((), {}, {})
    families = [each for each in node.metrics.registry.collect() if "container_gpu_" in each.name]
    assert families and not any(family.samples for family in families)
    node.holds.append(hold("c1"))
    node.read(14, c1=Compute(throttled_ns=90 * S))
    assert node.increases() == (0, 0), "another container's file"


def test_a_reading_that_failed_is_made_up_for(node: Node) -> None:
    node.read(10, c1=Compute())
    node.read(11)
    node.read(12, c1=Compute(throttled_ns=S, spent_ns=S))
    assert (node.increases(), node.shares()) == ((1, 1), (0.5, 0.5))
    node.read(13)
    assert (node.increases(), node.shares()) == ((1, 1), (0.5, 0.5))


def test_containers_that_share_a_grant_have_one_series(node: Node) -> None:
    shared = replace(hold("c1"), key="shared", container_key="d/p")
    node.holds = [shared, replace(shared, container_id="c2")]
    node.read(10, shared=Compute(unfinished_since_ns=8 * S))
    assert node.increases("") == (0, 0)
    assert node.long_kernels == 1


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Compute(throttled_ns=2**64 - 1, spent_ns=2**64 - 1), (4096, 1)),
        (Compute(), (0, 0)),
        (Compute(throttled_ns=100 * S, spent_ns=100 * S), (0, 0)),
    ],
    ids=["too much", "less than before", "the same"],
)
def test_a_tenant_may_write_anything(
    node: Node, after: Compute, expected: tuple[float, float]
) -> None:
    node.read(10, c1=Compute(throttled_ns=100 * S, spent_ns=100 * S))
    for _ in range(2):
        node.read(11, c1=after)
        assert node.increases() == expected
        assert node.shares() == (expected[1], expected[1])


def test_a_long_kernel_is_reported_once_per_container(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    long = Compute(unfinished_since_ns=8 * S)
    for at_s in (10, 11, 12):
        node.read(at_s, c1=long, c2=Compute())
    notice = node.notices.first()
    assert notice is not None
    assert (notice.pod.uid, notice.reason) == ("uid-c1", names.EVENT_LIMIT_NOT_ENFORCEABLE)
    assert notice.text.startswith("GPU-1, used by d/p/c1: ")
    assert "kernels of more than a second cannot be interrupted" in notice.text
    assert "their excess is deducted from later windows" in notice.text
    node.notices.done(notice)
    assert node.notices.first() is None
    assert node.long_kernels == 1
    (said,) = (text for text in caplog.messages if text.startswith("LimitNotEnforceable"))
    assert "key=c1" in said and "gpu=GPU-1" in said
    node.read(13, c1=long, c2=long)
    assert node.long_kernels == 2


@pytest.mark.parametrize("since_ns", [0, 9 * S, 10 * S, 2**64 - 1])
def test_what_is_no_long_kernel(node: Node, since_ns: int) -> None:
    node.read(10, c1=Compute(unfinished_since_ns=since_ns))
    assert node.notices.first() is None
    assert node.long_kernels == 0
