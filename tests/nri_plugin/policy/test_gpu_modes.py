"""A GPU has one mode; of a share and a whole allocation of the same GPU, exactly one succeeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from nri_plugin.policy import ledger
from nri_plugin.policy.gpu_modes import (
    ADMISSION_S,
    OTHER_GONE_S,
    Assigned,
    GpuModes,
    Mode,
    Offer,
    preferred,
)
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.other_plugins import Sign, conflict
from nri_plugin.policy.refusals import Reason
from tests.support import GIB

GPUS = [Gpu(f"GPU-{n}", n, 8 * GIB, index=n) for n in range(3)]
ANY = Offer(any=True)
NOTHING = Assigned({}, {})
NO_SHARES: frozenset[str] = frozenset()


def known(offer: Offer = ANY) -> GpuModes:
    modes = GpuModes(offer)
    modes.assigned(NOTHING, NO_SHARES, 0)
    return modes


def kubelet_sees(modes: GpuModes, shared: frozenset[str] = NO_SHARES) -> dict[str, bool]:
    return {g.uuid: not modes.unavailable(g, shared) for g in GPUS if modes.is_listed(g)}


def test_without_an_offer_each_gpu_is_shared_and_the_kubelet_sees_none() -> None:
    modes = GpuModes()
    assert {modes.mode(gpu) for gpu in GPUS} == {(Mode.SHARED, "")}
    assert kubelet_sees(modes) == {}
    assert "only for shares" in modes.allocate(["GPU-0"], GPUS, NO_SHARES, 0)
    assert modes.objection(["GPU-0"]) is None


def test_reserved_gpus_are_given_whole_only() -> None:
    """They are reserved by NVML's index, or by UUID."""
    modes = known(Offer(reserved=frozenset({"0", "GPU-2"})))
    assert [modes.mode(gpu)[0] for gpu in GPUS] == [Mode.WHOLE, Mode.SHARED, Mode.WHOLE]
    assert kubelet_sees(modes) == {"GPU-0": True, "GPU-2": True}
    assert "only for shares" in modes.allocate(["GPU-1"], GPUS, NO_SHARES, 0)
    assert modes.offer.problem(GPUS) == ""
    missing = Offer(reserved=frozenset({"0", "7"})).problem(GPUS)
    assert missing == "--whole-gpus: invalid value 7: must be GPUs of this node"


def test_a_gpu_with_shares_is_not_allocated() -> None:
    modes = known()
    shared = frozenset({"GPU-1"})
    assert kubelet_sees(modes, shared) == {"GPU-0": True, "GPU-1": False, "GPU-2": True}
    refusal = modes.allocate(["GPU-0", "GPU-1"], GPUS, shared, 0)
    assert refusal == "nvidia.com/gpu: GPU-1 cannot be allocated: pods have shares of it"
    assert not modes.held, "all or none"


def test_a_failed_an_excluded_and_an_unknown_gpu_are_not_allocated() -> None:
    modes = known()
    modes.excluded = frozenset({"GPU-0"})
    assert modes.mode(GPUS[0])[0] is Mode.EXCLUDED
    failed = [*GPUS[:2], Gpu("GPU-2", 2, 8 * GIB, problem="MIG mode is enabled")]
    for uuid, why in (
        ("GPU-0", names.ANNOTATION_EXCLUDED_GPUS),
        ("GPU-2", "MIG mode is enabled"),
        ("GPU-9", "must be a GPU of this node"),
    ):
        assert why in modes.allocate([uuid], failed, NO_SHARES, 0)


def test_a_held_gpu_stays_available_to_the_kubelet() -> None:
    """It rejects the GPU's pod at its own restart otherwise."""
    modes = known()
    assert modes.allocate(["GPU-0"], GPUS, NO_SHARES, 0) == ""
    modes.excluded = frozenset({"GPU-0"})
    assert kubelet_sees(modes)["GPU-0"]
    assert modes.mode(GPUS[0])[0] is Mode.WHOLE
    refusal = modes.objection(["GPU-1", "GPU-0"])
    assert refusal is not None and refusal.reason is Reason.GPU_WHOLE
    assert refusal.text.startswith("GPU of the share: invalid value GPU-0: must be a shared GPU; ")


def test_a_hold_ends_when_the_kubelet_assigns_the_gpu_no_more() -> None:
    modes = known()
    modes.allocate(["GPU-0", "GPU-1"], GPUS, NO_SHARES, 0)
    modes.assigned(NOTHING, NO_SHARES, ADMISSION_S - 1)
    assert modes.held == {"GPU-0", "GPU-1"}, "the kubelet is still admitting the pods"
    modes.assigned(Assigned({"GPU-0": "default/whole"}, {}), NO_SHARES, ADMISSION_S)
    assert (modes.held, modes.pods) == ({"GPU-0"}, {"default/whole"}), "it rejected the other one"
    modes.assigned(NOTHING, NO_SHARES, ADMISSION_S + 1)
    assert not modes.held


def test_the_record_of_a_pod_that_exists_holds_its_gpu() -> None:
    """PodResources lists no init container, and no pod at the kubelet's start. The node's pods are
    not known at the agent's start."""
    modes, record = GpuModes(ANY), {"GPU-0": {"uid-1"}}
    refusal = modes.objection(["GPU-0"])
    assert refusal is not None and refusal.reason is Reason.GPU_MODE_UNKNOWN
    modes.assigned(Assigned({}, record), None, 0)
    refusal = modes.objection(["GPU-0"])
    assert refusal is not None and "to a pod in the kubelet's checkpoint" in refusal.text
    for assigned in ({}, {"GPU-0": "default/whole"}, {}):
        modes.assigned(Assigned(assigned, record), frozenset({"uid-1"}), 100)
        assert modes.held == {"GPU-0"}
    assert "uid-1" in modes.pods
    modes.assigned(Assigned({}, record), frozenset({"uid-2"}), 101)
    assert not modes.held, "the record of a pod that is gone is stale"
    assert modes.objection(["GPU-0"]) is None


def test_another_device_plugin_excludes_all_gpus_until_it_has_ended() -> None:
    modes = known()
    assert modes.conflict("node-1") is None
    modes.note("socket", Sign("a device plugin listens on nvidia-gpu.sock"), 0)
    assert {modes.mode(gpu)[0] for gpu in GPUS} == {Mode.EXCLUDED}
    assert "nvidia-gpu.sock" in modes.allocate(["GPU-0"], GPUS, NO_SHARES, 0)
    assert "keep it off this node" in (modes.conflict("node-1") or "")
    assert modes.objection(["GPU-0"]) is None, "it has given the GPU to no pod"
    modes.note("socket", None, OTHER_GONE_S - 1)
    assert modes.other_plugin, "the kubelet restarts, and drops the plugin for some seconds"
    modes.note("socket", None, OTHER_GONE_S)
    assert modes.conflict("node-1") is None


def test_beside_a_dra_driver_no_gpu_has_a_share() -> None:
    """Which of them its claims hold is recorded nowhere on the node."""
    modes = GpuModes()
    modes.note("dra", Sign("NVIDIA's DRA driver listens on dra.sock", is_dra=True), 0)
    for gpu in GPUS:
        refusal = modes.objection([gpu.uuid])
        assert refusal is not None and refusal.reason is Reason.GPU_OF_DRA
        assert "serves this node (NVIDIA's DRA driver listens on dra.sock)" in refusal.text
    modes.note("dra", None, OTHER_GONE_S)
    assert modes.objection(["GPU-0"]) is None


# --- what the operator can do against another program --------------------------------------------

SOCKET = "a device plugin listens on nvidia-gpu.sock"
LABEL = (
    "kubectl label node node-1 nvidia.com/gpu.deploy.device-plugin=false"
    " nvidia.com/gpu.deploy.operator-validator=false --overwrite"
)
BOTTLEROCKETS = "settings.kubelet-{}.nvidia.enabled = false in Bottlerocket's settings"


def of_unit(name: str) -> Sign:
    return Sign(SOCKET, is_dra="dra" in name, service=f"{name}.service")


@pytest.mark.parametrize(
    ("sign", "operator", "do"),
    [
        (Sign(SOCKET), False, "keep it off this node"),
        (Sign(SOCKET), True, LABEL),
        (Sign(SOCKET, is_gke=True), False, "gke-no-default-nvidia-gpu-device-plugin=true"),
        (
            of_unit("nvidia-k8s-device-plugin"),
            True,
            f"set {BOTTLEROCKETS.format('device-plugins')}",
        ),
        (of_unit("nvidia-dra-driver-gpu"), False, f"set {BOTTLEROCKETS.format('dra-drivers')}"),
        (of_unit("nvidia-device-plugin"), False, "managementMode: Unmanaged"),
        (of_unit("dra-driver-nvidia-gpu"), False, "managementMode: Unmanaged"),
        (of_unit("own"), True, "stop it: systemctl disable --now own.service"),
        (Sign("dra", is_dra=True), True, "keep the DRA driver's kubelet plugin off this node"),
    ],
)
def test_the_advice_exists_on_the_platform(sign: Sign, operator: bool, do: str) -> None:
    """Labels of GPU Operator keep off only what GPU Operator runs."""
    text = conflict([sign], "node-1", operator)
    assert text.startswith(f"another program allocates this node's GPUs ({sign.text})")
    assert do in text and text.endswith("or keep gpuslice off it by nodeSelector")
    assert ("kubectl label" in text) == ("kubectl label" in do)


def test_two_signs_of_one_program_have_one_advice() -> None:
    text = conflict([Sign(SOCKET), Sign("status.allocatable has nvidia.com/gpu: 8")], "n", False)
    assert f"({SOCKET}; status.allocatable has nvidia.com/gpu: 8)" in text
    assert text.count("keep it off this node") == 1
    assert conflict([], "n", False) == ""


# --- exactly one wins ----------------------------------------------------------------------------

UUIDS = [gpu.uuid for gpu in GPUS]
steps = st.lists(
    st.tuples(
        st.sampled_from(["share", "whole", "end share", "end whole", "list", "agent", "wait"]),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=40,
)


class Node:
    """The agent's ledger and modes, with a kubelet that does as it is answered."""

    def __init__(self) -> None:
        self.ledger, self.modes, self.now_s = Ledger(), known(), 0.0
        self.whole: dict[str, str] = {}
        """UUID -> pod, by the kubelet."""
        self.shares: dict[str, str] = {}

    def do(self, what: str, gpu: Gpu, number: int) -> None:
        pod = Pod(f"uid-{number}", "default", f"pod-{number}")
        match what:
            case "share":
                if self.modes.objection([gpu.uuid]) is None:
                    share = Share(gpu.uuid, gpu.minor, GIB, 10)
                    hold = ledger.hold(f"c-{number}", f"c-{number}", False, pod, "main", [share])
                    allowed = {gpu.uuid: ledger.Part(GIB, 10)}
                    if self.ledger.take(hold, GPUS, allowed) is None:
                        self.shares[f"c-{number}"] = gpu.uuid
            case "whole":
                if gpu.uuid in self.whole:
                    return  # the kubelet gives no device twice
                shared = frozenset(u for h in self.ledger.holds() for u in h.parts)
                if not self.modes.allocate([gpu.uuid], GPUS, shared, self.now_s):
                    self.whole[gpu.uuid] = f"default/whole-{number}"
            case "end share":
                self.ledger.drop(f"c-{number}")
                self.shares.pop(f"c-{number}", None)
            case "end whole":
                self.whole.pop(gpu.uuid, None)
            case "list":
                self.list()
            case "agent":  # it restarts: the runtime's and the kubelet's lists are all that it has
                self.modes = GpuModes(ANY)
                assert self.modes.objection([gpu.uuid]) is not None
                self.list()
            case "wait":
                self.now_s += ADMISSION_S / 2

    def list(self) -> None:
        self.modes.assigned(Assigned(dict(self.whole), {}), frozenset(), self.now_s)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_of_a_share_and_a_whole_gpu_exactly_one_wins(
    chosen: Sequence[tuple[str, int, int]],
) -> None:
    node = Node()
    for what, gpu, number in chosen:
        node.do(what, GPUS[gpu], number)
        both = set(node.whole) & set(node.shares.values())
        assert not both, "a GPU is held whole, and shared"
        assert set(node.whole) <= set(node.modes.held)
    free = [u for u in UUIDS if u not in node.whole and u not in node.shares.values()]
    node.now_s += ADMISSION_S
    node.list()
    assert not set(free) & set(node.modes.held), "what is free can be had"


# --- which GPUs are near each other --------------------------------------------------------------

BOARD = [
    *(Gpu(f"GPU-{n}", n, GIB, numa=n // 4, link=f"nvlink-{n // 2 * 2}") for n in range(8)),
    Gpu("GPU-8", 8, GIB),
]
ALL = [gpu.uuid for gpu in BOARD]


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        (ALL, [], 2, {"GPU-0", "GPU-1"}),
        (ALL, ["GPU-5"], 2, {"GPU-4", "GPU-5"}),
        (ALL, [], 4, {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}),
        (["GPU-1", "GPU-2", "GPU-4", "GPU-5"], [], 2, {"GPU-4", "GPU-5"}),
        (["GPU-0", "GPU-1", "GPU-2", "GPU-8"], [], 1, {"GPU-8"}),
        (["GPU-0", "GPU-9"], [], 2, {"GPU-0"}),
        ([], [], 1, set()),
        (ALL, [], 9, set(ALL)),
    ],
)
def test_gpus_near_each_other_are_preferred(
    available: Sequence[str], must: Sequence[str], size: int, expected: set[str]
) -> None:
    assert set(preferred(available, must, size, BOARD)) == expected
