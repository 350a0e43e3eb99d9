"""Live containers hold at most the GPU and their pod's allocation, in any order of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nri_plugin.policy.ledger import NOTHING, Hold, Ledger, Part, hold, parts
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refusal

A, B = Gpu("GPU-a", 0, 100), Gpu("GPU-b", 1, 7)
WHOLE = {A.uuid: Part(100, 100), B.uuid: Part(7, 100)}
HALF = {A.uuid: Part(50, 50)}


def own(identity: str, memory: int, core: int = 0, name: str = "main", uid: str = "uid") -> Hold:
    pod = Pod(uid, "team", f"pod-of-{uid}")
    return hold(identity, identity, pod, name, [Share(A.uuid, 0, memory, core)])


def shared(identity: str, memory: int, name: str = "main", uid: str = "uid") -> Hold:
    shares = [Share(A.uuid, 0, memory, 100, uncapped=True)]
    return hold(identity, f"pod-{uid}", Pod(uid, "team", f"pod-of-{uid}"), name, shares)


def total(holds: Iterable[Hold]) -> Mapping[str, Part]:
    """Return each GPU's sum. Containers that share a grant have one key, and count once."""
    found: dict[str, Part] = {}
    for held in {one.key: one for one in holds}.values():
        for uuid, part in held.parts.items():
            memory_bytes, core_percent = astuple(found.get(uuid, NOTHING))
            found[uuid] = Part(memory_bytes + part.memory_bytes, core_percent + part.core_percent)
    return found


def take(ledger: Ledger, wanted: Hold, allocated: Mapping[str, Part] = WHOLE) -> Refusal | None:
    return ledger.take(wanted, (A, B), allocated)


def taken(*holds: Hold, allocated: Mapping[str, Part] = WHOLE) -> Ledger:
    ledger = Ledger()
    for each in holds:
        assert take(ledger, each, allocated) is None
    return ledger


def full(ledger: Ledger, wanted: Hold, allocated: Mapping[str, Part] = WHOLE) -> str:
    """Return the text with which the ledger refuses `wanted`."""
    short = take(ledger, wanted, allocated)
    assert short is not None
    assert short.reason is (Reason.GPU_FULL if allocated is WHOLE else Reason.ALLOCATION_FULL)
    return short.text


def test_exactly_the_gpu_fits_and_not_one_more() -> None:
    ledger = taken(own("1", 60, 50, uid="x"), own("2", 40, 50, uid="y"))
    assert full(ledger, own("3", 1, uid="z")) == (
        "GPU-a: insufficient free capacity: 1 bytes of memory requested, 0 of 100 free; the kubelet"
        " retries; granted: team/pod-of-x/main 60, team/pod-of-y/main 40"
    )
    assert take(ledger, own("2", 40, 50, uid="y")) is None, "it is held already"
    assert total(ledger.holds()) == {A.uuid: Part(100, 100)}


def test_compute_is_counted_too_unless_it_is_not_capped() -> None:
    ledger = taken(own("1", 1, 60, uid="x"), shared("y", 1, uid="y"), shared("z", 1, uid="z"))
    assert "41 percent of compute requested, 40 of 100" in full(ledger, own("2", 1, 41, uid="v"))


def test_the_hold_of_a_container_in_creation_outlives_a_list_without_it() -> None:
    zero, *others = [own(str(number), 10, uid=str(number)) for number in range(4)]
    ledger = taken(zero, *others)
    ledger.adopt([zero], {"1", "2"})
    assert ledger.is_complete and {held.container_id for held in ledger.holds()} == {*"012"}


def test_the_refusal_names_the_largest_holders() -> None:
    ledger = taken(*(own(str(n), 10 - n % 2, uid=str(n)) for n in range(10)))
    text = full(ledger, own("x", 6, uid="x"))
    assert "6 bytes of memory requested, 5 of 100 free" in text
    assert "granted: team/pod-of-0/main 10, team/pod-of-2/main 10" in text
    assert text.endswith("team/pod-of-5/main 9, and 2 more")
    ledger.drop("9")
    ledger.drop("7")
    assert full(ledger, own("x", 24, uid="x")).endswith("team/pod-of-5/main 9"), "all are named"


def test_a_pods_running_containers_do_not_exceed_its_allocation() -> None:
    """The GPU has free capacity, but the pod's allocation has none."""
    ledger = taken(own("1", 40, 10, "sidecar"), own("2", 10, 40), allocated=HALF)
    assert full(ledger, own("3", 1, name="debug"), HALF) == (
        "annotation gpuslice.io/grants: containers.debug: invalid value 1 bytes of memory of GPU-a:"
        " must be at most 0, the free part of the pod's allocation of 50; the kubelet retries;"
        " granted to running containers: team/pod-of-uid/sidecar 40, team/pod-of-uid/main 10"
    )
    ledger.drop("1")
    text = full(ledger, own("3", 1, 11, "debug"), HALF)
    assert "11 percent of compute of GPU-a: must be at most 10" in text
    assert take(ledger, own("4", 50, uid="other"), HALF) is None, "another pod's is its own"


def test_holds_that_the_model_does_not_make() -> None:
    ledger = taken(shared("1", 50), shared("2", 1, "side"))
    assert not ledger.is_complete, "the runtime has not listed its containers"
    assert total(ledger.holds())[A.uuid].memory_bytes == 50, "the grant in force counts"
    ledger.adopt([own("1", 80, uid=""), own("2", 80, uid="")], ())
    assert "-60 of 100 free" in full(ledger, own("3", 1, uid="")), "what runs is adopted"
    full(ledger, own("4", 51), HALF)  # the pod's own allocation is checked first


ALLOCATED: Mapping[str, Mapping[str, Part]] = {
    "x": {A.uuid: Part(60, 60), B.uuid: Part(7, 70)},
    "y": {A.uuid: Part(35, 90), B.uuid: Part(5, 20)},
    "z": {A.uuid: Part(30, 30)},
}


def exceeds(found: Mapping[str, Part], most: Mapping[str, Part]) -> bool:
    return any(not part.within(most[gpu]) for gpu, part in found.items())


class Node(RuleBasedStateMachine):
    """A node's containers and the agent's ledger. Removal events may be lost, the agent killed."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.listed: list[Hold] = []
        self.exited: set[str] = set()
        self.count = 0

    def alive(self) -> list[Hold]:
        return [held for held in self.listed if held.container_id not in self.exited]

    @rule(
        uid=st.sampled_from(["x", "y", "z"]),
        name=st.sampled_from(["init", "main", "side"]),
        both=st.booleans(),
        memory=st.integers(1, 60),
        core=st.integers(0, 60),
        undone=st.booleans(),
    )
    def create(self, uid: str, name: str, both: bool, memory: int, core: int, undone: bool) -> None:
        self.count += 1
        key = identity = str(self.count)
        shares = [Share(A.uuid, 0, memory, core)]
        if both:
            shares.append(Share(B.uuid, 1, memory % 7 + 1, core))
        # The containers of pod z share one grant, which never changes.
        if uid == "z":
            shares, key = [Share(A.uuid, 0, 30, 30)], "pod-z"
        allocated = ALLOCATED[uid]
        if exceeds(parts(shares), allocated):
            return  # the policy refuses a share beyond the allocation before it asks the ledger
        wanted = hold(identity, key, Pod(uid, "team", uid), name, shares)
        others = [held for held in self.alive() if (held.pod_uid, held.container) != (uid, name)]
        of_pod = [held for held in others if held.pod_uid == uid]
        fits = key in {held.key for held in others} or not (
            exceeds(total([*others, wanted]), WHOLE) or exceeds(total([*of_pod, wanted]), allocated)
        )
        assert (take(self.ledger, wanted, allocated) is None) == fits
        if not fits:
            return
        self.exited |= {held.container_id for held in self.alive() if held not in others}
        if undone:
            self.ledger.drop(identity)
        else:
            self.listed.append(wanted)

    @precondition(lambda self: self.listed)
    @rule(data=st.data(), removed=st.booleans())
    def stop(self, data: st.DataObject, removed: bool) -> None:
        """The container may have exited long ago, and its removal may be lost."""
        one = data.draw(st.sampled_from(self.listed))
        self.exited.add(one.container_id)
        self.ledger.drop(one.container_id)
        if removed:
            self.ledger.drop(one.container_id)
            self.listed.remove(one)

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """Restart the agent or containerd. The runtime then lists the running containers."""
        if killed:
            self.ledger = Ledger()
        self.ledger.adopt(self.alive(), ())

    @invariant()
    def the_ledger_has_the_running_containers(self) -> None:
        found = total(self.ledger.holds())
        assert found == total(self.alive())
        assert not exceeds(found, WHOLE)
        for uid, allocated in ALLOCATED.items():
            held = total(each for each in self.alive() if each.pod_uid == uid)
            assert not exceeds(held, allocated)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
