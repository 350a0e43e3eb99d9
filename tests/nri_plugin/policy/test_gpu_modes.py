"""A GPU has one mode. Of a share and a whole allocation of the same GPU, exactly one succeeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.contract import names
from nri_plugin.policy import gpu_modes, ledger
from nri_plugin.policy.gpu_modes import ADMISSION_S, OTHER_GONE_S, Assigned, GpuModes, Mode, Offer
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.other_plugins import Sign, conflict
from nri_plugin.policy.refusals import Reason
from tests.support import GIB

GPUS = [Gpu(f"GPU-{n}", n, 8 * GIB, index=n) for n in range(3)]
SOCKET = "a device plugin listens on nvidia-gpu.sock"
NONE: frozenset[str] = frozenset()
ANY = Offer(any=True)
SHARED, WHOLE = Mode.SHARED, Mode.WHOLE


def known(offer: Offer = ANY) -> GpuModes:
    modes = GpuModes(offer)
    modes.assigned(Assigned({}, {}), NONE, 0)
    return modes


def each_mode(modes: GpuModes) -> list[Mode]:
    return [modes.mode(gpu)[0] for gpu in GPUS]


def kubelet_sees(modes: GpuModes, *shared: str) -> dict[str, bool]:
    listed = [gpu for gpu in GPUS if modes.is_listed(gpu)]
    return {gpu.uuid: not modes.unavailable(gpu, frozenset(shared)) for gpu in listed}


def objection(modes: GpuModes, *uuids: str) -> tuple[Reason, str]:
    refusal = modes.objection(uuids)
    assert refusal is not None
    return refusal.reason, refusal.text


def test_gpus_are_shared_unless_they_are_reserved() -> None:
    """A GPU is reserved by its NVML index, or by its UUID."""
    modes = GpuModes()
    assert (each_mode(modes), kubelet_sees(modes)) == ([SHARED] * 3, {})
    assert "only for shares" in modes.allocate(["GPU-0"], GPUS, NONE, 0)
    assert modes.objection(["GPU-0"]) is None
    modes = known(Offer(reserved=frozenset({"0", "GPU-2"})))
    assert each_mode(modes) == [WHOLE, SHARED, WHOLE]
    assert kubelet_sees(modes) == {"GPU-0": True, "GPU-2": True}
    assert "only for shares" in modes.allocate(["GPU-1"], GPUS, NONE, 0)
    assert modes.offer.problem(GPUS) == ""
    missing = Offer(reserved=frozenset({"0", "7"})).problem(GPUS)
    assert missing == "--whole-gpus: invalid value 7: must be GPUs of this node"


def test_what_is_not_allocated() -> None:
    modes, failed = known(), Gpu("GPU-3", 3, 8 * GIB, problem="MIG mode is enabled")
    modes.excluded = frozenset({"GPU-2"})
    assert each_mode(modes) == [SHARED, SHARED, Mode.EXCLUDED]
    assert kubelet_sees(modes, "GPU-1") == {"GPU-0": True, "GPU-1": False, "GPU-2": False}
    for uuid, why in (
        ("GPU-1", "pods have shares of it"),
        ("GPU-2", f"annotation {names.ANNOTATION_EXCLUDED_GPUS} of the node"),
        ("GPU-3", "MIG mode is enabled"),
        ("GPU-9", "must be a GPU of this node"),
    ):
        refusal = modes.allocate(["GPU-0", uuid], [*GPUS, failed], frozenset({"GPU-1"}), 0)
        assert refusal == f"nvidia.com/gpu: {uuid} cannot be allocated: {why}"
        assert not modes.held, "all or none"


def test_a_hold_ends_when_the_kubelet_assigns_the_gpu_no_more() -> None:
    """A held GPU is reported as healthy. Otherwise a restarted kubelet would reject its pod."""
    modes = known()
    assert modes.allocate(["GPU-0", "GPU-1"], GPUS, NONE, 0) == ""
    modes.excluded = frozenset({"GPU-0"})
    assert kubelet_sees(modes, "GPU-0")["GPU-0"]
    assert each_mode(modes)[0] is WHOLE
    reason, text = objection(modes, "GPU-2", "GPU-0")
    assert reason is Reason.GPU_WHOLE
    assert text.startswith("GPU of the share: invalid value GPU-0: must be a shared GPU; ")
    modes.assigned(Assigned({}, {}), NONE, ADMISSION_S - 1)
    assert modes.held == {"GPU-0", "GPU-1"}, "the kubelet is still admitting the pods"
    modes.assigned(Assigned({"GPU-0": "default/whole"}, {}), NONE, ADMISSION_S)
    assert (modes.held, modes.pods) == ({"GPU-0"}, {"default/whole"}), "it rejected the other one"
    modes.assigned(Assigned({}, {}), NONE, ADMISSION_S + 1)
    assert not modes.held


def test_the_record_of_a_pod_that_exists_holds_its_gpu() -> None:
    """PodResources does not list GPUs of init containers. At its start the agent knows no pods.
    Therefore each GPU in the kubelet's record is held until its pod is known to be gone."""
    modes, record = GpuModes(ANY), {"GPU-0": {"uid-1"}}
    assert objection(modes, "GPU-0")[0] is Reason.GPU_MODE_UNKNOWN
    modes.assigned(Assigned({}, record), None, 0)
    assert "to a pod in the kubelet's checkpoint" in objection(modes, "GPU-0")[1]
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
    modes.note("socket", Sign(SOCKET), 0)
    assert each_mode(modes) == [Mode.EXCLUDED] * 3
    assert SOCKET in modes.allocate(["GPU-0"], GPUS, NONE, 0)
    modes.note("node", Sign("status.allocatable has nvidia.com/gpu: 8"), 0)
    conflict = modes.conflict("node-1") or ""
    assert f"({SOCKET}; status.allocatable has nvidia.com/gpu: 8)" in conflict
    assert conflict.count("keep it off this node") == 1
    modes.note("node", None, OTHER_GONE_S)
    assert modes.objection(["GPU-0"]) is None, "it has given the GPU to no pod"
    modes.note("socket", None, OTHER_GONE_S - 1)
    assert modes.other_plugin, "the kubelet restarts, and drops the plugin for some seconds"
    modes.note("socket", None, OTHER_GONE_S)
    assert modes.conflict("node-1") is None


def test_beside_a_dra_driver_no_gpu_has_a_share() -> None:
    """Nothing on the node records which of the GPUs the driver's claims hold."""
    modes = GpuModes()
    modes.note("dra", Sign("NVIDIA's DRA driver listens on dra.sock", is_dra=True), 0)
    for gpu in GPUS:
        reason, text = objection(modes, gpu.uuid)
        assert reason is Reason.GPU_OF_DRA
        assert "serves this node (NVIDIA's DRA driver listens on dra.sock)" in text
    modes.note("dra", None, OTHER_GONE_S)
    assert modes.objection(["GPU-0"]) is None


LABEL = (
    "kubectl label node node-1 nvidia.com/gpu.deploy.device-plugin=false"
    " nvidia.com/gpu.deploy.operator-validator=false --overwrite"
)
SETTING = "set settings.kubelet-{}.nvidia.enabled = false in Bottlerocket's settings"
DRA = "keep the DRA driver's kubelet plugin off this node"


def unit(name: str) -> Sign:
    return Sign(SOCKET, is_dra="dra" in name, service=f"{name}.service")


@pytest.mark.parametrize(
    ("sign", "operator", "do"),
    [
        (Sign(SOCKET), False, "keep it off this node"),
        (Sign(SOCKET), True, LABEL),
        (Sign(SOCKET, is_gke=True), False, "gke-no-default-nvidia-gpu-device-plugin=true"),
        (unit("nvidia-k8s-device-plugin"), True, SETTING.format("device-plugins")),
        (unit("nvidia-dra-driver-gpu"), False, SETTING.format("dra-drivers")),
        (unit("nvidia-device-plugin"), False, "managementMode: Unmanaged"),
        (unit("dra-driver-nvidia-gpu"), False, "managementMode: Unmanaged"),
        (unit("own"), True, "stop it: systemctl disable --now own.service"),
        (Sign("dra", is_dra=True), True, DRA),
    ],
)
def test_the_advice_exists_on_the_platform(sign: Sign, operator: bool, do: str) -> None:
    """The advice names a label only if GPU Operator runs the program that the label turns off."""
    text = conflict([sign], "node-1", operator)
    assert text.startswith(f"another program allocates this node's GPUs ({sign.text})")
    assert do in text and text.endswith("or keep gpuslice off it by nodeSelector")
    assert ("kubectl label" in text) == ("kubectl label" in do)


class Node:
    """The agent's ledger and modes, with a kubelet that follows the agent's answers."""

    def __init__(self) -> None:
        self.ledger, self.modes, self.now_s = Ledger(), known(), 0.0
        self.whole: dict[str, str] = {}  # the pod by UUID, as the kubelet assigned it
        self.shares: dict[str, str] = {}  # the GPU's UUID by container

    def do(self, what: str, gpu: Gpu, number: int) -> None:
        match what:
            case "share" if self.modes.objection([gpu.uuid]) is None:
                container, pod = f"c-{number}", Pod(f"uid-{number}", "default", f"pod-{number}")
                share = Share(gpu.uuid, gpu.minor, GIB, 10)
                hold = ledger.hold(container, container, pod, "main", [share])
                if self.ledger.take(hold, GPUS, {gpu.uuid: ledger.Part(GIB, 10)}) is None:
                    self.shares[container] = gpu.uuid
            case "whole" if gpu.uuid not in self.whole:  # the kubelet gives no device twice
                if not self.modes.allocate([gpu.uuid], GPUS, self.ledger.gpus(), self.now_s):
                    self.whole[gpu.uuid] = f"default/whole-{number}"
            case "end share":
                self.ledger.drop(f"c-{number}")
                self.shares.pop(f"c-{number}", None)
            case "end whole":
                self.whole.pop(gpu.uuid, None)
            case "list":
                self.list()
            case "agent":  # the agent restarts, and knows only the kubelet's and runtime's lists
                self.modes = GpuModes(ANY)
                assert self.modes.objection([gpu.uuid]) is not None
                self.list()
            case "wait":
                self.now_s += ADMISSION_S / 2

    def list(self) -> None:
        self.modes.assigned(Assigned(dict(self.whole), {}), NONE, self.now_s)


STEPS = st.sampled_from(["share", "whole", "end share", "end whole", "list", "agent", "wait"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(STEPS, st.sampled_from(GPUS), st.integers(0, 5)), max_size=40))
def test_of_a_share_and_a_whole_gpu_one_wins(steps: Sequence[tuple[str, Gpu, int]]) -> None:
    node = Node()
    for what, gpu, number in steps:
        node.do(what, gpu, number)
        assert node.whole.keys().isdisjoint(node.shares.values()), "a GPU is held whole, and shared"
        assert node.whole.keys() <= node.modes.held
    node.now_s += ADMISSION_S
    node.list()
    assert node.modes.held <= {*node.whole, *node.shares.values()}, "what is free can be had"


BOARD = [
    *(Gpu(f"GPU-{n}", n, GIB, numa=n // 4, link=f"nvlink-{n // 2 * 2}") for n in range(8)),
    Gpu("GPU-8", 8, GIB),
]
ALL = "012345678"


def test_gpus_near_each_other_are_preferred() -> None:
    """Each digit of a text stands for a GPU. GPU 9 is not on this node."""
    for available, must, size, expected in (
        (ALL, "", 2, "01"),
        (ALL, "5", 2, "45"),
        (ALL, "", 4, "0123"),
        ("1245", "", 2, "45"),
        ("046", "", 2, "46"),
        ("012", "", 1, "2"),
        ("0128", "", 1, "8"),
        ("09", "", 2, "0"),
        ("", "", 1, ""),
        (ALL, "", 9, ALL),
    ):
        uuids, wanted, found = (
            [f"GPU-{number}" for number in numbers] for numbers in (available, must, expected)
        )
        assert sorted(gpu_modes.preferred(uuids, wanted, size, BOARD)) == found
