"""What the containers that live hold of this node's GPUs, and whether one more has room.

Pure: events in, shortages out. An annotation says what a pod was granted, but anybody who may write
pods can write one; a GPU cannot be granted twice, whoever says so. Nor can a pod's allocation:
its init containers may each have all of it, since each has ended before the next container begins,
but which they are is told by nothing else than what lives. Nothing here asks the API server.

How it is counted: by the key of the grant's files, so that containers which share a grant hold it
once, and every other container its own. A container holds from before its creation is answered
until it stops, or is removed, or its creation is undone; dead and not yet removed it holds nothing.
A container takes the place of the one that had its name in its pod: Kubernetes restarts a container
only when its predecessor is dead. Bytes and percent are exact; a share without a cap on compute
holds no compute, as Koordinator counts it.

Rebuilt by `adopt` from what runs, at every Synchronize; nothing is kept on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from nri_plugin.errors import Reason, Refusal, refuse
from nri_plugin.model import Gpu, Pod, Share


@dataclass(frozen=True, slots=True)
class Part:
    """An amount of one GPU."""

    memory_bytes: int
    core_percent: int

    def plus(self, other: Part) -> Part:
        return Part(self.memory_bytes + other.memory_bytes, self.core_percent + other.core_percent)

    def within(self, other: Part) -> bool:
        return self.memory_bytes <= other.memory_bytes and self.core_percent <= other.core_percent


NOTHING: Final = Part(0, 0)
_WHOLE_CORE_PERCENT: Final = 100
_NAMED_AT_MOST: Final = 8
_UNITS: Final = {"memory_bytes": "bytes of memory", "core_percent": "percent of compute"}


@dataclass(frozen=True, slots=True)
class Hold:
    """What one container holds. `key` names the grant's files; equal keys hold one grant."""

    container_id: str
    key: str
    pod_uid: str
    container: str
    whose: str
    """For people: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD where the pod shares a grant."""
    parts: Mapping[str, Part]
    """By GPU."""
    pod: Pod
    minors: Mapping[str, int] = field(default_factory=dict)
    """By GPU, its number when the grant was made."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first of memory and core, of the first GPU, of which not enough is left."""

    reason: Reason
    """What is short: the GPU, or the pod's allocation of it."""
    container: str
    """Who asks."""
    uuid: str
    what: str
    asked: int
    total: int
    left: int
    """Below zero where more is granted already than there is."""
    held: Sequence[tuple[str, int]]
    """Who holds how much of it, the largest first."""

    def refusal(self) -> Refusal:
        named = [f"{whose} {amount}" for whose, amount in self.held[:_NAMED_AT_MOST]]
        if len(self.held) > _NAMED_AT_MOST:
            named.append(f"and {len(self.held) - _NAMED_AT_MOST} more")
        return refuse(
            self.reason,
            container=self.container,
            uuid=self.uuid,
            asked=self.asked,
            unit=_UNITS[self.what],
            left=self.left,
            total=self.total,
            held=", ".join(named) or "none",
        )


def hold(
    container_id: str, key: str, shared: bool, pod: Pod, container: str, shares: Iterable[Share]
) -> Hold:
    """The hold of a container, from its shares."""
    whose = f"{pod.namespace}/{pod.name}" + ("" if shared else f"/{container}")
    held = tuple(shares)
    minors = {share.uuid: share.minor for share in held}
    return Hold(container_id, key, pod.uid, container, whose, parts(held), pod, minors)


def parts(shares: Iterable[Share]) -> Mapping[str, Part]:
    """By GPU, what the shares take of it."""
    return {
        share.uuid: Part(share.memory_bytes, 0 if share.uncapped else share.core_percent)
        for share in shares
    }


class Ledger:
    """The holds of this node."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}
        self._unheard: set[str] = set()

    def take(
        self, wanted: Hold, gpus: Iterable[Gpu], allocated: Mapping[str, Part]
    ) -> Shortage | None:
        """Enter `wanted` if its GPUs have room for it, and its pod's allocation of them, which is
        `allocated`; else say what is short, and change nothing.

        To ask again for what is held already is fine, and takes no more.
        """
        others = [other for other in self._holds.values() if not _succeeds(wanted, other)]
        grants = _by_key(others)
        if wanted.key in grants:
            # Its files are there, and say what is in force; whether it is what is wanted now is
            # decided where they are read.
            there = grants[wanted.key]
            wanted = replace(wanted, parts=there.parts, minors=there.minors)
        else:
            siblings = [other for other in grants.values() if _of_one_pod(wanted, other)]
            shortage = short(Reason.ALLOCATION_FULL, wanted, siblings, allocated) or short(
                Reason.GPU_FULL, wanted, grants.values(), whole(gpus)
            )
            if shortage is not None:
                return shortage
        self._holds = {other.container_id: other for other in others}
        self._holds[wanted.container_id] = wanted
        self._unheard.discard(wanted.container_id)
        return None

    def drop(self, container_id: str) -> None:
        """The container has ended, or never was; to say so twice is fine."""
        self._holds.pop(container_id, None)
        self._unheard.discard(container_id)

    def heard_of(self, container_id: str) -> None:
        """The runtime has told of the container since: it is no rumour."""
        self._unheard.discard(container_id)

    def adopt(self, running: Iterable[Hold], in_the_making: AbstractSet[str]) -> AbstractSet[str]:
        """Forget everything but what runs, and what was answered a moment ago and may not be listed
        yet; returns the latter. What is still unheard of after a while is to be given to `doubt`.
        """
        kept = {i: held for i, held in self._holds.items() if i in in_the_making}
        self._holds = {held.container_id: held for held in running}
        unheard = {i: held for i, held in kept.items() if i not in self._holds}
        self._holds |= unheard
        self._unheard = set(unheard)
        return frozenset(unheard)

    def doubt(self, container_ids: AbstractSet[str]) -> None:
        """Drop those of them that nothing was heard of since `adopt`."""
        for container_id in container_ids & self._unheard:
            self.drop(container_id)

    def granted(self) -> Mapping[str, Part]:
        """By GPU, what all that live hold of it."""
        total: dict[str, Part] = {}
        for held in _by_key(self._holds.values()).values():
            for uuid, part in held.parts.items():
                total[uuid] = total.get(uuid, NOTHING).plus(part)
        return total

    def holds(self) -> Sequence[Hold]:
        return tuple(self._holds.values())


def _succeeds(wanted: Hold, other: Hold) -> bool:
    """Whether `other` is the container itself, or the one whose place it takes."""
    same_name = wanted.container == other.container and _of_one_pod(wanted, other)
    return wanted.container_id == other.container_id or same_name


def _of_one_pod(wanted: Hold, other: Hold) -> bool:
    return wanted.pod_uid == other.pod_uid != ""


def _by_key(holds: Iterable[Hold]) -> Mapping[str, Hold]:
    return {held.key: held for held in holds}


def whole(gpus: Iterable[Gpu]) -> Mapping[str, Part]:
    """All that there is to hold."""
    return {gpu.uuid: Part(gpu.most_bytes, _WHOLE_CORE_PERCENT) for gpu in gpus}


def short(
    reason: Reason, wanted: Hold, held: Iterable[Hold], totals: Mapping[str, Part]
) -> Shortage | None:
    """Where `wanted`, beside what is `held`, exceeds `totals`, which are by GPU."""
    others = list(held)
    for uuid, part in wanted.parts.items():
        for what in _UNITS:
            asked, total = int(getattr(part, what)), int(getattr(totals[uuid], what))
            amounts = [
                (other.whose, int(getattr(other.parts[uuid], what)))
                for other in others
                if uuid in other.parts
            ]
            left = total - sum(amount for _, amount in amounts)
            if asked > left:
                amounts.sort(key=lambda entry: -entry[1])
                held_by = tuple(amounts)
                return Shortage(reason, wanted.container, uuid, what, asked, total, left, held_by)
    return None
