"""The mode of each GPU of this node: shared, whole or excluded.

Pure: times are arguments. This module is used only on the event loop. Therefore a GPU goes either
to a share or to an `allocate`, whichever comes first. A whole GPU is held from the kubelet's
Allocate call, which names no pod, until the kubelet no longer lists the GPU for a pod. After a
restart the holds are read from the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from math import inf
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy import other_plugins
from nri_plugin.policy.model import Gpu
from nri_plugin.policy.other_plugins import Sign
from nri_plugin.policy.refusals import Reason, Refusal, refuse

ADMISSION_S: Final = 10.0
"""Time after which an allocated GPU is free if the kubelet lists it for no pod. Then the kubelet
has rejected the pod for another reason. Otherwise it lists the GPU within milliseconds."""
OTHER_GONE_S: Final = 60.0
"""Time without a sign after which another device plugin counts as gone. A restarting kubelet drops
each plugin's resource for a while, until the plugin has registered again."""


class Mode(StrEnum):
    SHARED = "Shared"
    WHOLE = "Whole"
    EXCLUDED = "Excluded"


@dataclass(frozen=True, slots=True)
class Offer:
    """The setting --whole-gpus. any: pods may hold any GPU whole that has no share. reserved:
    indexes and UUIDs of GPUs that are only held whole, and of which no share is granted."""

    any: bool = False
    reserved: AbstractSet[str] = frozenset()

    def __bool__(self) -> bool:
        return self.any or bool(self.reserved)

    def problem(self, gpus: Sequence[Gpu]) -> str:
        """Return the error if a reserved GPU does not exist on this node, else ""."""
        known = {text for gpu in gpus for text in (gpu.uuid, str(gpu.index))}
        unknown = ", ".join(sorted(self.reserved - known))
        return f"--whole-gpus: invalid value {unknown}: must be GPUs of this node" * bool(unknown)

    def reserves(self, gpu: Gpu) -> bool:
        return gpu.uuid in self.reserved or str(gpu.index) in self.reserved


@dataclass(frozen=True, slots=True)
class Assigned:
    """The kubelet's assignments by the GPU's UUID. pods: NAMESPACE/NAME of running pods, from the
    kubelet's API. recorded: UIDs of pods in the kubelet's record, including pods that ended."""

    pods: Mapping[str, str]
    recorded: Mapping[str, AbstractSet[str]]


@dataclass(frozen=True, slots=True)
class _Hold:
    """A hold of a whole GPU. pod: NAMESPACE/NAME, "" until the kubelet reports the pod. since_s:
    the time of the allocation. recorded: UIDs of pods in the kubelet's record."""

    pod: str
    since_s: float
    recorded: AbstractSet[str] = frozenset()


class GpuModes:
    def __init__(self, offer: Offer = Offer()) -> None:
        self.offer = offer
        self.excluded: AbstractSet[str] = frozenset()
        """UUIDs of the GPUs that the Node's annotation excludes."""
        self.other_plugin = ""
        """The signs of other programs that allocate this node's GPUs. "": there is no sign."""
        self.operator = False
        """Whether NVIDIA's GPU Operator manages the node."""
        self.unknown = "the kubelet has not reported its assignments yet" if offer else ""
        """Why the kubelet's assignments are not known. "": they are known."""
        self._holds: dict[str, _Hold] = {}
        self._signs: dict[str, tuple[Sign, float]] = {}

    # --- one mode per GPU ------------------------------------------------------------------------

    def mode(self, gpu: Gpu) -> tuple[Mode, str]:
        """Return the GPU's mode, and a text with its cause."""
        if self.other_plugin:
            return Mode.EXCLUDED, self.other_plugin
        if gpu.uuid in self._holds:
            return Mode.WHOLE, f"assigned whole to a pod ({names.RESOURCE_NVIDIA_GPU})"
        if gpu.uuid in self.excluded:
            return Mode.EXCLUDED, f"annotation {names.ANNOTATION_EXCLUDED_GPUS} of the node"
        if self.offer.reserves(gpu):
            return Mode.WHOLE, "reserved for whole use (--whole-gpus)"
        return Mode.SHARED, ""

    def is_listed(self, gpu: Gpu) -> bool:
        """Whether the device plugin lists the GPU, as healthy or unhealthy, for the kubelet."""
        return self.offer.any or self.offer.reserves(gpu) or gpu.uuid in self._holds

    def unavailable(self, gpu: Gpu, shared: AbstractSet[str]) -> str:
        """Return why the kubelet must not allocate the GPU. "": it may. shared: UUIDs of GPUs of
        which a share is granted.

        A held GPU stays available, because a restarting kubelet rejects a running pod whose GPU is
        unavailable.
        """
        mode, why = self.mode(gpu)
        if gpu.problem:
            return gpu.problem
        if gpu.uuid in self._holds:
            return ""
        if gpu.uuid in shared:
            return "pods have shares of it"
        if mode is Mode.EXCLUDED:
            return why
        return "" if self.is_listed(gpu) else "it is only for shares (--whole-gpus)"

    # --- whole GPUs ------------------------------------------------------------------------------

    @property
    def held(self) -> AbstractSet[str]:
        return self._holds.keys()

    @property
    def pods(self) -> AbstractSet[str]:
        """Return the pods that hold a GPU whole: NAMESPACE/NAME of pods that the kubelet reports,
        and UIDs of pods in its record."""
        pods = {hold.pod for hold in self._holds.values()} - {""}
        return pods.union(*(hold.recorded for hold in self._holds.values()))

    def allocate(
        self, uuids: Iterable[str], gpus: Sequence[Gpu], shared: AbstractSet[str], now_s: float
    ) -> str:
        """Hold all of these GPUs whole, or none. Return why they cannot be held, else ""."""
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        wanted = list(uuids)
        for uuid in wanted:
            gpu = by_uuid.get(uuid)
            why = self.other_plugin or (
                self.unavailable(gpu, shared) if gpu else "must be a GPU of this node"
            )
            if why:
                return f"{names.RESOURCE_NVIDIA_GPU}: {uuid} cannot be allocated: {why}"
        for uuid in wanted:
            self._holds[uuid] = _Hold("", now_s)
        return ""

    def assigned(
        self, assigned: Assigned, existing_uids: AbstractSet[str] | None, now_s: float
    ) -> None:
        """Set the holds to the kubelet's assignments. existing_uids: UIDs of the node's pods at the
        API server, None while they are not known.

        A restarted kubelet reports no pod until the API server has answered the kubelet. Until
        then its record shows the holds. An entry of a pod that no longer exists at the API server
        is ignored. While the pods are not known, all entries count.
        """
        self.unknown = ""
        recorded = {
            uuid: uids if existing_uids is None else uids & existing_uids
            for uuid, uids in assigned.recorded.items()
        }
        for uuid, hold in list(self._holds.items()):
            fresh = not hold.pod and now_s - hold.since_s < ADMISSION_S
            if not (recorded.get(uuid) or fresh):
                del self._holds[uuid]
        for uuid, uids in recorded.items():
            if uids:
                hold = self._holds.get(uuid, _Hold("", -inf))
                self._holds[uuid] = replace(hold, recorded=uids)
        for uuid, pod in assigned.pods.items():
            self._holds[uuid] = _Hold(pod, now_s, recorded.get(uuid, frozenset()))

    def objection(self, uuids: Iterable[str]) -> Refusal | None:
        """Return why a container may not have a share of these GPUs now."""
        for uuid in uuids:
            hold = self._holds.get(uuid)
            if hold is not None:
                recorded = "a pod in the kubelet's checkpoint"
                admitted = "a pod that the kubelet admits now"
                pod = hold.pod or (recorded if hold.recorded else admitted)
                return refuse(Reason.GPU_WHOLE, uuid=uuid, pod=pod)
            dra = next((sign.text for sign, _ in self._signs.values() if sign.is_dra), "")
            if dra:
                return refuse(Reason.GPU_OF_DRA, uuid=uuid, sign=dra)
        return refuse(Reason.GPU_MODE_UNKNOWN, problem=self.unknown) if self.unknown else None

    # --- another device plugin, or a DRA driver --------------------------------------------------

    def note(self, source: str, sign: Sign | None, now_s: float) -> None:
        """Record the sign of another program that `source` found. None: it found no sign."""
        if sign is not None:
            self._signs[source] = sign, now_s
        elif source in self._signs and now_s - self._signs[source][1] >= OTHER_GONE_S:
            del self._signs[source]
        self.other_plugin = "; ".join(sign.text for sign, _ in self._signs.values())

    def conflict(self, node_name: str) -> str | None:
        """Return which other program allocates the node's GPUs, and what to change, else None."""
        signs = [sign for sign, _ in self._signs.values()]
        return other_plugins.conflict(signs, node_name, self.operator) or None


def preferred(
    available: Sequence[str], must: Sequence[str], size: int, gpus: Sequence[Gpu]
) -> Sequence[str]:
    """Choose `size` of the available GPUs, including `must`, that are near each other.

    GPUs of one NVLink group are nearest, then those of one NUMA node. Of equally good sets, the
    set with the fewest near GPUs outside of it is chosen.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    known = [uuid for uuid in available if uuid in by_uuid]

    def near(one: str, other: str) -> int:
        a, b = by_uuid[one], by_uuid[other]
        return 2 * (a.link != "" and a.link == b.link) + (a.numa is not None and a.numa == b.numa)

    def grown(seed: Sequence[str]) -> Sequence[str]:
        chosen = list(seed)
        while len(chosen) < size:
            rest = [uuid for uuid in known if uuid not in chosen]
            if not rest:
                break
            chosen.append(max(rest, key=lambda uuid: sum(near(uuid, one) for one in chosen)))
        return chosen

    def value(chosen: Sequence[str]) -> tuple[int, int]:
        inside = sum(near(*pair) for pair in combinations(chosen, 2))
        left = sum(near(one, other) for one in chosen for other in known if other not in chosen)
        return inside, -left

    seeds = [[uuid for uuid in must if uuid in by_uuid]] if must else [[uuid] for uuid in known]
    return max(map(grown, seeds), key=value, default=())
