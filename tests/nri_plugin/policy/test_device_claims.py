"""Claims of devices: what is prepared, and which container gets which share.

The machine of states is the node: claims are prepared and unprepared, containers are created and
stop, pods are deleted by force, and the agent restarts, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuslice.contract import names
from nri_plugin.policy import device_claims, ledger
from nri_plugin.policy.front_ends import SETTLE_S, FrontEnd, FrontEnds
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Claim, Container, Gpu, Pod
from nri_plugin.policy.plan import grant_key
from nri_plugin.policy.refusals import Reason, Refused

GIB = 1 << 30
GPUS = [Gpu(f"GPU-{letter}", minor, 8 * GIB) for minor, letter in enumerate("AB")]
NODE = "node-a"


def result(device: str, share: str, memory: str = "2Gi", core: str = "20", **more: Any) -> Any:
    consumed = {"memory": memory, "core": core}
    return {
        "request": "gpu",
        "driver": names.DRA_DRIVER,
        "pool": NODE,
        "device": device,
        "shareID": share,
        "consumedCapacity": consumed,
        **more,
    }


def claim(uid: str, *results: Any, pods: tuple[str, ...] = ("pod-1",)) -> Mapping[str, Any]:
    return {
        "metadata": {"uid": uid, "namespace": "default", "name": "web"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "uid": pod} for pod in pods],
        },
    }


def sources(*claims: Mapping[str, Any]) -> FrontEnds:
    made = FrontEnds(FrontEnd.CLAIMS)
    for each in claims:
        made.devices.put(device_claims.allocated(each, NODE))
    return made


def cdi(*shares: str) -> list[str]:
    return [f"{names.CDI_KIND_CLAIM}={share}" for share in shares]


POD = Pod("pod-1", "default", "web")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"adminAccess": True}, "adminAccess: invalid value true"),
        ({"pool": "node-b"}, "pool: invalid value node-b: must be node-a"),
        ({"shareID": None}, "consumedCapacity: required value"),
        ({"consumedCapacity": {"memory": "1Gi"}}, "consumedCapacity: required value"),
        ({"consumedCapacity": {"memory": "-1", "core": "1"}}, "consumedCapacity: required value"),
        ({"driver": "gpu.nvidia.com"}, "must be allocated"),
    ],
)
def test_an_allocation_without_a_limit_is_refused(change: Any, text: str) -> None:
    with pytest.raises(Refused, match=text):
        device_claims.allocated(claim("u", {**result("gpu-a", "0" * 36), **change}), NODE)


def test_a_container_gets_the_shares_that_its_cdi_names_name() -> None:
    of = sources(claim("u", result("gpu-a", "a" * 36), result("gpu-a", "b" * 36, "1Gi", "30")))
    one = of.claim(POD, "main", cdi("u-aaaaaaaa", "u-aaaaaaaa"), GPUS)
    assert one is not None
    assert [(s.uuid, s.memory_bytes, s.core_percent) for s in one.shares] == [
        ("GPU-A", 2 * GIB, 20)
    ]
    both = of.claim(POD, "main", cdi("u-aaaaaaaa", "u-bbbbbbbb"), GPUS)
    assert both is not None
    assert [(s.memory_bytes, s.core_percent) for s in both.shares] == [(3 * GIB, 50)]
    assert ledger.claimed(both.key) == {"u-aaaaaaaa", "u-bbbbbbbb"}
    assert of.claim(POD, "sidecar", [], GPUS) == Claim(), "it starts without a GPU"


def test_containers_at_the_same_time_have_equal_shares_or_none_in_common() -> None:
    of, held = sources(claim("u", result("gpu-a", "a" * 36), result("gpu-a", "b" * 36))), Ledger()

    def take(container: str, *named: str) -> Reason | None:
        granted = of.claim(POD, container, cdi(*named), GPUS)
        assert granted is not None
        wanted = ledger.hold(container, granted.key, POD, container, granted.shares)
        refusal = held.take(wanted, GPUS, ledger.parts(granted.allocated))
        return refusal.reason if refusal else None

    assert take("init", "u-aaaaaaaa", "u-bbbbbbbb") is None
    assert take("early", "u-aaaaaaaa") is Reason.SHARE_IN_USE
    held.drop("init")
    for name, share in (("one", "u-aaaaaaaa"), ("two", "u-bbbbbbbb"), ("side", "u-aaaaaaaa")):
        assert take(name, share) is None


def test_all_gpus_of_a_node_make_a_valid_key() -> None:
    """The key names a directory."""
    uids = [f"0e1de5f8-91f6-4b0c-9d2e-7c0c9a1e5f0{n}" for n in range(2)]
    shares = [f"{uids[n // 8]}-{n:08x}" for n in range(names.MAX_GPUS)]
    granted = Claim(shared=True, key=ledger.claim_key(shares))
    assert grant_key(POD, Container("c", "main"), granted) == granted.key
    assert ledger.claimed(granted.key) == {*shares}
    assert not ledger.claimed("pod-1") and not ledger.claimed("0e1de5f8")


def test_a_name_is_believed_only_for_a_pod_of_the_claim() -> None:
    """Another pod may forge a CDI name, or write our annotations."""
    of = sources(claim("u", result("gpu-a", "a" * 36)))
    other = Pod("pod-2", "default", "thief", annotations={names.ANNOTATION_GRANTS: "{}"})
    for pod, listed in ((other, cdi("u-aaaaaaaa")), (POD, cdi("u-bbbbbbbb"))):
        assert of.may_claim(pod, listed)
        with pytest.raises(Refused) as refused:
            of.claim(pod, "main", listed, GPUS)
        assert refused.value.refusal.reason is Reason.CLAIM_NOT_PREPARED
    with pytest.raises(Refused) as refused:
        of.claim(other, "main", [], GPUS)
    assert refused.value.refusal.reason is Reason.CLAIMS_ONLY
    assert not of.may_claim(Pod("pod-2", "default", "plain"), ["nvidia.com/gpu=0"])


def test_a_grant_counts_while_one_of_its_claims_is_lost() -> None:
    of = sources(*(claim(uid, result("gpu-a", uid * 36, "4Gi")) for uid in "uv"))
    granted = of.claim(POD, "main", cdi("u-uuuuuuuu", "v-vvvvvvvv"), GPUS)
    assert granted is not None
    held = ledger.hold("c", granted.key, POD, "main", granted.shares)
    of.devices.drop("v")
    wanted = device_claims.allocated(claim("w", result("gpu-a", "w" * 36, "1Gi")), NODE)
    assert of.devices.short(wanted, GPUS, [held]) is not None


def test_a_failed_or_unknown_gpu_prepares_nothing() -> None:
    for gpus, reason in (
        ([], Reason.GPU_UNKNOWN),
        ([Gpu("GPU-A", 0, 8 * GIB, problem="lost")], Reason.GPU_UNHEALTHY),
    ):
        wanted = device_claims.allocated(claim("u", result("gpu-a", "a" * 36)), NODE)
        refusal = sources().devices.short(wanted, gpus, ())
        assert refusal is not None
        assert refusal.reason is reason


def test_the_front_end_changes_after_nothing_was_held_for_a_while() -> None:
    of = FrontEnds()
    assert of.want("claims", FrontEnd.ANNOTATIONS) == ""
    assert of.leaves
    assert not of.settle(True, 0.0)
    assert not of.settle(False, 5.0), "a pod came"
    assert not of.settle(True, SETTLE_S), "the time begins again"
    assert of.now is FrontEnd.ANNOTATIONS
    assert of.settle(True, 2 * SETTLE_S)
    assert (of.now, of.leaves) == (FrontEnd.CLAIMS, "")
    assert "must be annotations or claims" in of.want("x", FrontEnd.ANNOTATIONS)
    assert of.want("", FrontEnd.ANNOTATIONS) == ""
    assert of.wanted is FrontEnd.ANNOTATIONS, "the default applies without the label"
    assert not of.settle(True, 100.0)
    assert of.want("claims", FrontEnd.ANNOTATIONS) == of.want("", FrontEnd.ANNOTATIONS) == ""
    assert not of.settle(True, 100.0 + SETTLE_S), "the time begins again"
    assert "must be annotations: too old" in of.want("claims", FrontEnd.ANNOTATIONS, "too old")
    assert of.wanted is of.now, "it stays as it is"


PODS = ["pod-0", "pod-1"]


class Node(RuleBasedStateMachine):
    """A node of two GPUs. `running` has each container's pod and name. `making`: containers that
    the runtime does not list yet."""

    def __init__(self) -> None:
        super().__init__()
        self.sources, self.ledger = sources(), Ledger()
        self.allocated: dict[str, Mapping[str, Any]] = {}
        self.running: dict[str, tuple[str, str]] = {}
        self.making: set[str] = set()
        self.count = 0

    def _next(self) -> int:
        self.count += 1
        return self.count

    @rule(data=st.data(), old=st.booleans())
    def the_scheduler_allocates(self, data: st.DataObject, old: bool) -> None:
        """It counts only claims of pods that exist, so more may be allocated than there is. A named
        claim may be allocated anew, or reserved for other pods."""
        uid = f"c{self._next()}"
        if old and self.allocated:
            uid = data.draw(st.sampled_from(sorted(self.allocated)))
        parts = st.tuples(
            st.sampled_from(["gpu-a", "gpu-b"]),
            st.sampled_from(["4Gi", "8Gi"]),
            st.sampled_from(["0", "50", "100"]),
        )
        drawn = data.draw(st.lists(parts, min_size=1, max_size=2))
        results = [result(gpu, f"{self._next():08d}", *amounts) for gpu, *amounts in drawn]
        if old and uid in self.allocated and data.draw(st.booleans()):
            results = self.allocated[uid]["status"]["allocation"]["devices"]["results"]
        pods = data.draw(st.sets(st.sampled_from(PODS), min_size=1))
        self.allocated[uid] = claim(uid, *results, pods=tuple(pods))

    @precondition(lambda self: self.allocated)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.allocated)))
        wanted = device_claims.allocated(self.allocated[uid], NODE)
        before = self.sources.devices.prepared.get(uid)
        known = before is not None and before.shares == wanted.shares
        if known or self.sources.devices.short(wanted, GPUS, self.ledger.holds()) is None:
            self.sources.devices.put(wanted)

    @precondition(lambda self: self.allocated)
    @rule(data=st.data())
    def unprepare(self, data: st.DataObject) -> None:
        """A kubelet that lost its state unprepares while containers run."""
        uid = data.draw(st.sampled_from(sorted(self.allocated)))
        self.sources.devices.drop(uid)
        del self.allocated[uid]

    @precondition(lambda self: self.sources.devices.prepared)
    @rule(data=st.data(), uid=st.sampled_from(PODS), name=st.sampled_from("ab"), late=st.booleans())
    def create(self, data: st.DataObject, uid: str, name: str, late: bool) -> None:
        """Create a container, which may succeed another of its name. late: it is not listed yet."""
        pod = Pod(uid, "default", "p")
        of_pod = sorted(self.sources.devices.of_pod(uid))
        if not of_pod:
            return
        chosen = data.draw(st.lists(st.sampled_from(of_pod), min_size=1, max_size=3))
        granted = self.sources.claim(pod, name, cdi(*chosen), GPUS)
        assert granted is not None
        container_id = f"i{self._next()}"
        wanted = ledger.hold(container_id, granted.key, pod, name, granted.shares)
        refusal = self.ledger.take(wanted, GPUS, ledger.parts(granted.allocated))
        if refusal is None:
            self.running = {i: of for i, of in self.running.items() if of != (uid, name)}
            self.running[container_id] = uid, name
            self.making = {*self.making & self.running.keys(), *[container_id] * late}
        else:
            assert refusal.reason is Reason.SHARE_IN_USE, "a prepared claim has room"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        container_id = data.draw(st.sampled_from(sorted(self.running)))
        self.ledger.drop(container_id)
        del self.running[container_id]
        self.making.discard(container_id)

    @rule()
    def the_runtime_lists_containers(self) -> None:
        listed = [hold for hold in self.ledger.holds() if hold.container_id not in self.making]
        self.ledger.adopt(listed, self.making)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """The agent restarts, and records may be lost. Containers have their grant files."""
        holds, before = self.ledger.holds(), self.sources.devices.prepared
        self.ledger, self.making = Ledger(), set()
        self.ledger.adopt(holds, frozenset())
        kept = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else ()
        self.sources = sources()
        self.sources.restore({uid: before[uid] for uid in kept})

    @invariant()
    def each_running_container_is_held(self) -> None:
        assert {hold.container_id for hold in self.ledger.holds()} == self.running.keys()

    @invariant()
    def no_gpu_is_granted_twice(self) -> None:
        grants = {hold.key: hold for hold in self.ledger.holds()}.values()
        _fits(
            (uuid, part.memory_bytes, part.core_percent)
            for hold in grants
            for uuid, part in hold.parts.items()
        )

    @invariant()
    def no_share_is_in_two_grants(self) -> None:
        keys = {hold.key for hold in self.ledger.holds()}
        listed = [share for key in keys for share in ledger.claimed(key)]
        assert len(listed) == len({*listed})

    @invariant()
    def prepared_claims_fit(self) -> None:
        shares = [s for each in self.sources.devices.prepared.values() for s in each.shares]
        _fits((share.device, share.memory_bytes, share.core_percent) for share in shares)


def _fits(parts: Iterable[tuple[str, int, int]]) -> None:
    """Assert that these parts fit in their GPUs."""
    memory, core = Counter[str](), Counter[str]()
    for gpu, memory_bytes, core_percent in parts:
        memory[gpu] += memory_bytes
        core[gpu] += core_percent
    assert all(amount <= 8 * GIB for amount in memory.values())
    assert all(amount <= 100 for amount in core.values())


Node.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestNode = Node.TestCase
