"""The ledger: the share of each GPU that each container holds, and whether a new one fits.

Pure. Every user with write access to pods can write an annotation, so the ledger prevents that a
GPU, or a pod's allocation, is granted twice. Init containers may each have all of the allocation:
each ends before the next container starts. Only the set of running containers shows which they are.

Containers with one key of the grant's files hold it once, every other container its own. A
container holds its share from before its creation is answered until it stops, is removed, or its
creation is undone. It replaces the one of its name in its pod, which has exited. A share without a
compute limit holds no compute, as in Koordinator. `adopt` rebuilds the ledger at every Synchronize.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from nri_plugin.policy.model import Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refusal, refuse


@dataclass(frozen=True, slots=True)
class Part:
    """An amount of one GPU."""

    memory_bytes: int
    core_percent: int

    def within(self, other: Part) -> bool:
        return self.memory_bytes <= other.memory_bytes and self.core_percent <= other.core_percent


NOTHING: Final = Part(0, 0)
_WHOLE_CORE_PERCENT: Final = 100
_NAMED_MAX: Final = 8
_UNITS: Final = {"memory_bytes": "bytes of memory", "core_percent": "percent of compute"}


@dataclass(frozen=True, slots=True)
class Hold:
    """One container's hold. `key` names the grant's files; equal keys hold one grant."""

    container_id: str
    key: str
    pod_uid: str
    container: str
    container_key: str
    """For messages: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD if the pod shares a grant."""
    parts: Mapping[str, Part]
    """By GPU."""
    pod: Pod
    minors: Mapping[str, int] = field(default_factory=dict)
    """By GPU: its minor when the grant was made."""
    adjusted: bool = True
    """False: it was created without the agent. It has no GPU and no files, and its pod keeps its
    allocation: else the GPU could be granted again before the pod is recreated."""


def hold(
    container_id: str, key: str, shared: bool, pod: Pod, container: str, shares: Iterable[Share]
) -> Hold:
    """Return the hold of a container with these shares."""
    container_key = f"{pod.namespace}/{pod.name}" + ("" if shared else f"/{container}")
    taken = tuple(shares)
    minors = {share.uuid: share.minor for share in taken}
    return Hold(container_id, key, pod.uid, container, container_key, parts(taken), pod, minors)


def parts(shares: Iterable[Share]) -> Mapping[str, Part]:
    """Return what the shares take, by GPU."""
    return {
        share.uuid: Part(share.memory_bytes, 0 if share.uncapped else share.core_percent)
        for share in shares
    }


class Ledger:
    """The holds of this node."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}
        self.is_complete = False
        """Whether it has what runs: the runtime has listed its containers."""

    def take(
        self, wanted: Hold, gpus: Iterable[Gpu], allocated: Mapping[str, Part]
    ) -> Refusal | None:
        """Enter `wanted` if it fits its GPUs and its pod's allocation of them (`allocated`).
        Otherwise change nothing, and return the reason.

        Idempotent: a hold that exists already takes no more.
        """
        others = [other for other in self._holds.values() if not _succeeds(wanted, other)]
        grants = {other.key: other for other in others}
        if wanted.key in grants:
            # The existing files define what is in force. Code that reads them decides whether that
            # is what is wanted now.
            there = grants[wanted.key]
            wanted = replace(wanted, parts=there.parts, minors=there.minors)
        else:
            siblings = [other for other in grants.values() if _of_one_pod(wanted, other)]
            refusal = short(Reason.ALLOCATION_FULL, wanted, siblings, allocated) or short(
                Reason.GPU_FULL, wanted, grants.values(), whole(gpus)
            )
            if refusal is not None:
                return refusal
        self._holds = {other.container_id: other for other in others}
        self._holds[wanted.container_id] = wanted
        return None

    def drop(self, container_id: str) -> None:
        """The container has stopped, or was never created; idempotent."""
        self._holds.pop(container_id, None)

    def adopt(self, running: Iterable[Hold], in_the_making: Container[str]) -> None:
        """Replace all holds by those of running containers. Keep those of containers that the
        runtime does not list because they are being created."""
        kept = {i: hold for i, hold in self._holds.items() if i in in_the_making}
        self._holds = kept | {hold.container_id: hold for hold in running}
        self.is_complete = True

    def holds(self) -> Sequence[Hold]:
        return tuple(self._holds.values())

    def gpus(self) -> AbstractSet[str]:
        """Return the UUIDs of the GPUs of which a share is held."""
        return {uuid for hold in self._holds.values() for uuid in hold.parts}

    def pod_uids(self) -> AbstractSet[str]:
        return frozenset(hold.pod_uid for hold in self._holds.values())


def _succeeds(wanted: Hold, other: Hold) -> bool:
    """Whether `other` is the container itself, or the one that it replaces."""
    same_name = wanted.container == other.container and _of_one_pod(wanted, other)
    return wanted.container_id == other.container_id or same_name


def _of_one_pod(wanted: Hold, other: Hold) -> bool:
    return wanted.pod_uid == other.pod_uid != ""


def whole(gpus: Iterable[Gpu]) -> Mapping[str, Part]:
    """Return the whole capacity."""
    return {gpu.uuid: Part(gpu.most_bytes, _WHOLE_CORE_PERCENT) for gpu in gpus}


def short(
    reason: Reason, wanted: Hold, others: Collection[Hold], totals: Mapping[str, Part]
) -> Refusal | None:
    """Return the first resource of the first GPU in which `wanted` and `others` exceed `totals`
    (by GPU). reason: names the shortage, of the GPU or of the pod's allocation."""
    for uuid, part in wanted.parts.items():
        for resource, unit in _UNITS.items():
            requested, total = getattr(part, resource), getattr(totals[uuid], resource)
            amounts = [
                (getattr(other.parts[uuid], resource), other.container_key)
                for other in others
                if uuid in other.parts
            ]
            left = total - sum(amount for amount, _ in amounts)
            if requested > left:
                return refuse(
                    reason,
                    container=wanted.container,
                    uuid=uuid,
                    requested=requested,
                    unit=unit,
                    left=left,
                    total=total,
                    held=_listed(amounts),
                )
    return None


def _listed(amounts: Collection[tuple[int, str]]) -> str:
    """Return the holders and their amounts, the largest first."""
    ordered = sorted(amounts, key=itemgetter(0), reverse=True)
    texts = [f"{name} {amount}" for amount, name in ordered[:_NAMED_MAX]]
    if len(ordered) > _NAMED_MAX:
        texts.append(f"and {len(ordered) - _NAMED_MAX} more")
    return ", ".join(texts) or "none"
