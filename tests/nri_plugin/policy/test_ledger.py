"""Live containers hold no more of a GPU than it has, and no more of a pod's allocation than was
allocated, in any order of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nri_plugin.policy.ledger import NOTHING, Hold, Ledger, Part, hold, parts
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refusal

A, B = Gpu("GPU-a", 0, 100), Gpu("GPU-b", 1, 7)
GPUS = (A, B)


def own(identity: str, memory: int, core: int, name: str = "main", uid: str = "uid-1") -> Hold:
    pod = Pod(uid, "team", f"pod-of-{uid}")
    return hold(identity, identity, False, pod, name, [Share(A.uuid, 0, memory, core)])


WHOLE = {A.uuid: Part(100, 100), B.uuid: Part(7, 100)}


def plus(one: Part, other: Part) -> Part:
    return Part(one.memory_bytes + other.memory_bytes, one.core_percent + other.core_percent)


def granted(ledger: Ledger) -> Mapping[str, Part]:
    """Return the sum of all holds, by GPU."""
    total: dict[str, Part] = {}
    for held in {one.key: one for one in ledger.holds()}.values():
        for uuid, part in held.parts.items():
            total[uuid] = plus(total.get(uuid, NOTHING), part)
    return total


def take(ledger: Ledger, wanted: Hold, allocated: Mapping[str, Part] = WHOLE) -> Refusal | None:
    return ledger.take(wanted, GPUS, allocated)


def shared(identity: str, memory: int, name: str, uid: str = "uid-1") -> Hold:
    pod = Pod(uid, "team", f"pod-of-{uid}")
    shares = [Share(A.uuid, 0, memory, 100, uncapped=True)]
    return hold(identity, f"pod-{uid}", True, pod, name, shares)


def full(ledger: Ledger, wanted: Hold, allocated: Mapping[str, Part] = WHOLE) -> str:
    """The text of its refusal."""
    short = take(ledger, wanted, allocated)
    assert short is not None
    return short.text


def test_exactly_the_gpu_fits_and_not_one_more() -> None:
    ledger = Ledger()
    assert take(ledger, own("1", 60, 50, uid="x")) is None
    assert take(ledger, own("2", 40, 50, uid="y")) is None
    short = take(ledger, own("3", 1, 0, uid="z"))
    assert short is not None and short.reason is Reason.GPU_FULL
    assert short.text == (
        "GPU-a: insufficient free capacity: 1 bytes of memory requested, 0 of 100 free; the kubelet"
        " retries; granted: team/pod-of-x/main 60, team/pod-of-y/main 40"
    )
    assert granted(ledger) == {A.uuid: Part(100, 100)}


def test_compute_is_counted_too_unless_it_is_not_capped() -> None:
    ledger = Ledger()
    assert take(ledger, own("1", 1, 60, uid="x")) is None
    assert "41 percent of compute requested, 40 of 100" in full(ledger, own("2", 1, 41, uid="y"))
    for uid in "yz":
        assert take(ledger, shared(uid, 1, "main", uid=uid)) is None


def test_a_restarted_container_takes_its_predecessors_place() -> None:
    ledger = Ledger()
    assert take(ledger, own("1", 100, 100)) is None
    assert take(ledger, own("1", 100, 100)) is None, "the same, asked again"
    assert take(ledger, own("2", 100, 100)) is None
    assert [held.container_id for held in ledger.holds()] == ["2"]
    assert take(ledger, own("3", 1, 0, name="side")) is not None


def test_the_hold_of_a_container_in_creation_outlives_a_list_without_it() -> None:
    ledger = Ledger()
    for number in range(4):
        assert take(ledger, own(str(number), 10, 0, uid=str(number))) is None
    ledger.adopt([own("0", 10, 0, uid="0")], {"1", "2"})
    assert {held.container_id for held in ledger.holds()} == {"0", "1", "2"}


def test_the_refusal_names_the_largest_holders() -> None:
    ledger = Ledger()
    for number in range(10):
        assert take(ledger, own(str(number), 10 - number % 2, 0, uid=str(number))) is None
    text = full(ledger, own("x", 6, 0, uid="x"))
    assert "6 bytes of memory requested, 5 of 100 free" in text
    assert "granted: team/pod-of-0/main 10, team/pod-of-2/main 10" in text
    assert text.endswith("team/pod-of-5/main 9, and 2 more")


HALF = {A.uuid: Part(50, 50)}


def test_a_pods_running_containers_do_not_exceed_its_allocation() -> None:
    """The GPU has free capacity; it was not allocated to the pod."""
    ledger = Ledger()
    assert take(ledger, own("1", 40, 10, "sidecar"), HALF) is None
    assert take(ledger, own("2", 10, 40), HALF) is None
    assert full(ledger, own("3", 1, 0, "debug"), HALF) == (
        "annotation gpuslice.io/grants: containers.debug: invalid value 1 bytes of memory of GPU-a:"
        " must be at most 0, the free part of the pod's allocation of 50; the kubelet retries;"
        " granted to running containers:"
        " team/pod-of-uid-1/sidecar 40, team/pod-of-uid-1/main 10"
    )
    ledger.drop("1")
    text = full(ledger, own("3", 1, 11, "debug"), HALF)
    assert "11 percent of compute of GPU-a: must be at most 10" in text
    assert take(ledger, own("4", 50, 0, uid="other"), HALF) is None, "another pod's is its own"


def test_holds_that_the_model_does_not_make() -> None:
    ledger = Ledger()
    assert take(ledger, shared("1", 50, "main")) is None
    assert take(ledger, shared("2", 1, "side")) is None
    assert granted(ledger)[A.uuid].memory_bytes == 50, "the grant in force counts"
    ledger = Ledger()
    ledger.adopt([own("1", 80, 0, uid=""), own("2", 80, 0, uid="")], frozenset())
    text = full(ledger, own("3", 1, 0, uid="z"))
    assert "-60 of 100 free" in text, "what runs is adopted, whatever it is"
    short = take(ledger, own("4", 51, 0), HALF)
    assert short is not None and short.reason is Reason.ALLOCATION_FULL, "the pod's own comes first"


@dataclass
class Running:
    """A container of the model: its identity, its share, and whether it is still running."""

    held: Hold
    alive: bool = True


def _identity(one: Running) -> tuple[str, str]:
    return one.held.pod_uid, one.held.container


ALLOCATED: Mapping[str, Mapping[str, Part]] = {
    "x": {A.uuid: Part(60, 60), B.uuid: Part(7, 70)},
    "y": {A.uuid: Part(35, 90), B.uuid: Part(5, 20)},
    "z": {A.uuid: Part(30, 30)},
}


def exceeds(part: Part, most: Part) -> bool:
    return part.memory_bytes > most.memory_bytes or part.core_percent > most.core_percent


class Node(RuleBasedStateMachine):
    """A plain list of containers beside the ledger. The runtime behaves as containerd does, and
    loses removals; the agent is killed at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.running: list[Running] = []
        self.count = 0

    def expected(
        self, without: tuple[str, str] | None = None, uid: str | None = None
    ) -> Mapping[str, Part]:
        """Return what is expected of each GPU; of one pod, if `uid` is given."""
        grants: dict[str, Hold] = {}
        for one in self.running:
            if uid in (None, one.held.pod_uid) and one.alive and _identity(one) != without:
                grants.setdefault(one.held.key, one.held)
        total: dict[str, Part] = {}
        for held in grants.values():
            for uuid, part in held.parts.items():
                total[uuid] = plus(total.get(uuid, NOTHING), part)
        return total

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
        pod, identity = Pod(uid, "team", uid), str(self.count)
        shares = [Share(A.uuid, 0, memory, core)]
        if both:
            shares.append(Share(B.uuid, 1, memory % 7 + 1, core))
        # A pod never changes its kind; a shared pod's grant never changes.
        if uid == "z":
            shares, key = [Share(A.uuid, 0, 30, 30)], "pod-z"
        else:
            key = identity
        allocated = ALLOCATED[uid]
        if any(exceeds(part, allocated[gpu]) for gpu, part in parts(shares).items()):
            return  # the policy refuses it, whatever is running
        wanted = hold(identity, key, uid == "z", pod, name, shares)
        others = self.expected(without=(uid, name))
        siblings = {
            one.held.key for one in self.running if one.alive and _identity(one) != (uid, name)
        }
        of_pod = self.expected(without=(uid, name), uid=uid)
        fits = key in siblings or not any(
            exceeds(plus(total.get(gpu, NOTHING), part), most[gpu])
            for gpu, part in wanted.parts.items()
            for total, most in ((others, WHOLE), (of_pod, allocated))
        )
        assert (self.ledger.take(wanted, GPUS, allocated) is None) == fits
        if not fits:
            return
        for one in self.running:
            if _identity(one) == (uid, name):
                one.alive = False
        if undone:
            self.ledger.drop(identity)
        else:
            self.running.append(Running(wanted))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), removed=st.booleans())
    def stop(self, data: st.DataObject, removed: bool) -> None:
        """The following removal may be lost, and may be of a container that exited long ago."""
        one = data.draw(st.sampled_from(self.running))
        one.alive = False
        self.ledger.drop(one.held.container_id)
        if removed:
            self.ledger.drop(one.held.container_id)
            self.running.remove(one)

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        """The agent by kill -9, or containerd: the runtime lists the running containers."""
        if killed:
            self.ledger = Ledger()
        self.ledger.adopt([one.held for one in self.running if one.alive], ())

    @invariant()
    def the_ledger_has_the_running_containers(self) -> None:
        assert granted(self.ledger) == self.expected()
        for gpu in GPUS:
            assert not exceeds(granted(self.ledger).get(gpu.uuid, Part(0, 0)), WHOLE[gpu.uuid])
        for uid, allocated in ALLOCATED.items():
            held = self.expected(uid=uid)
            assert not any(exceeds(part, allocated[gpu]) for gpu, part in held.items())


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
