"""The ledger: the share of each GPU that each container holds, and whether a new share fits.

Pure. Any user with write access to pods can write annotations. Therefore the ledger ensures that
neither a GPU nor a pod's allocation is granted twice at the same time. Each init container may have
all of the allocation, because it ends before the next container starts.

Containers with an equal key share one grant, which counts once. A share of a claim has one key. A
container holds its share from before its creation is answered until it stops, is removed, or its
creation fails. A new container replaces the exited container of the same name and pod. A share
without a compute limit holds no compute, as in Koordinator. `adopt` rebuilds the ledger at every
Synchronize.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from nri_plugin.policy.model import Claim, Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refusal, refuse


@dataclass(frozen=True, slots=True)
class Part:
    """An amount of one GPU's memory and compute."""

    memory_bytes: int
    core_percent: int

    def within(self, other: Part) -> bool:
        return self.memory_bytes <= other.memory_bytes and self.core_percent <= other.core_percent


NOTHING: Final = Part(0, 0)
_POD_KEY: Final = "pod-"
_CLAIM_KEY: Final = "claim-"
_WHOLE_CORE_PERCENT: Final = 100
_NAMED_MAX: Final = 8
_UNITS: Final = {"memory_bytes": "bytes of memory", "core_percent": "percent of compute"}


@dataclass(frozen=True, slots=True)
class Hold:
    """One container's entry. key: names the grant's files. Holds of equal key share one grant."""

    container_id: str
    key: str
    pod_uid: str
    container: str
    container_key: str
    """NAMESPACE/POD/CONTAINER in messages, or NAMESPACE/POD if the containers share a grant."""
    parts: Mapping[str, Part]
    """What the container holds, by the GPU's UUID."""
    pod: Pod
    minors: Mapping[str, int] = field(default_factory=dict)
    """Each GPU's minor at the time of the grant, by the GPU's UUID."""
    adjusted: bool = True
    """False: the container was created while no agent ran, and has no GPU and no files. Its share
    is still held, so that no other pod gets it before this pod is recreated."""


def claim_key(shares: Iterable[str]) -> str:
    """Return the key of a grant of these shares: claim-UID_ID_ID.UID_ID, for shares UID-ID."""
    ids: dict[str, list[str]] = {}
    for share in sorted(shares):
        uid, _, share_id = share.rpartition("-")
        ids.setdefault(uid, [uid]).append(share_id)
    return _CLAIM_KEY + ".".join("_".join(each) for each in ids.values())


def claimed(key: str) -> AbstractSet[str]:
    """Return the shares of claims that a grant's key names. Empty: it is no grant of claims."""
    if not key.startswith(_CLAIM_KEY):
        return frozenset()
    claims = (each.split("_") for each in key.removeprefix(_CLAIM_KEY).split("."))
    return {f"{uid}-{share_id}" for uid, *ids in claims for share_id in ids}


def grant_key(claim: Claim, pod_uid: str, container_id: str) -> str:
    """Return the key of a container's grant."""
    return claim.key or (f"{_POD_KEY}{pod_uid}" if claim.shared else container_id)


def hold(container_id: str, key: str, pod: Pod, container: str, shares: Sequence[Share]) -> Hold:
    """Return the hold of a container with these shares. container "": messages name the pod."""
    names = pod.namespace, pod.name, "" if key.startswith(_POD_KEY) else container
    minors = {share.uuid: share.minor for share in shares}
    container_key = "/".join(filter(None, names))
    return Hold(container_id, key, pod.uid, container, container_key, parts(shares), pod, minors)


def parts(shares: Iterable[Share]) -> Mapping[str, Part]:
    """Return what the shares take of each GPU, by UUID."""
    return {
        share.uuid: Part(share.memory_bytes, 0 if share.uncapped else share.core_percent)
        for share in shares
    }


class Ledger:
    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}
        self.is_complete = False
        """Whether the runtime has listed its containers, and the ledger has their holds."""

    def take(
        self, wanted: Hold, gpus: Iterable[Gpu], allocated: Mapping[str, Part]
    ) -> Refusal | None:
        """Enter `wanted` if its GPUs and its pod's allocation (`allocated`) have enough left.
        Otherwise change nothing, and return the reason. Idempotent."""
        others = [other for other in self._holds.values() if not _succeeds(wanted, other)]
        grants = {other.key: other for other in others}
        if wanted.key in grants:
            # The grant's files exist already, and their values are in force. Therefore the hold
            # gets the parts of the existing hold. RunDirectory.apply refuses a different plan.
            there = grants[wanted.key]
            wanted = replace(wanted, parts=there.parts, minors=there.minors)
        else:
            shares = claimed(wanted.key)
            for other in grants.values():
                if shares & claimed(other.key):
                    return refuse(Reason.SHARE_IN_USE, holder=other.container_key)
            # The shares of a claim are not a part of their pod's allocation.
            siblings = [o for o in grants.values() if _of_one_pod(wanted, o) and not shares]
            refusal = short(Reason.ALLOCATION_FULL, wanted, siblings, allocated) or short(
                Reason.GPU_FULL, wanted, grants.values(), whole(gpus)
            )
            if refusal is not None:
                return refusal
        self._holds = {other.container_id: other for other in others}
        self._holds[wanted.container_id] = wanted
        return None

    def drop(self, container_id: str) -> None:
        """Remove the hold of a container that stopped or was not created. Idempotent."""
        self._holds.pop(container_id, None)

    def adopt(self, running: Iterable[Hold], in_the_making: Container[str]) -> None:
        """Replace all holds by `running`, except the holds of containers in `in_the_making`. The
        runtime does not list these yet, because they are being created."""
        kept = {i: hold for i, hold in self._holds.items() if i in in_the_making}
        self._holds = kept | {hold.container_id: hold for hold in running}
        self.is_complete = True

    def holds(self) -> Sequence[Hold]:
        return tuple(self._holds.values())

    def gpus(self) -> AbstractSet[str]:
        """Return the UUIDs of GPUs of which a container holds a share."""
        return {uuid for hold in self._holds.values() for uuid in hold.parts}

    def pod_uids(self) -> AbstractSet[str]:
        return frozenset(hold.pod_uid for hold in self._holds.values())


def _succeeds(wanted: Hold, other: Hold) -> bool:
    """Whether `wanted` replaces `other`: the same container, or an exited one of the same name."""
    same_name = wanted.container == other.container and _of_one_pod(wanted, other)
    return wanted.container_id == other.container_id or same_name


def _of_one_pod(wanted: Hold, other: Hold) -> bool:
    return wanted.pod_uid == other.pod_uid != ""


def whole(gpus: Iterable[Gpu]) -> Mapping[str, Part]:
    """Return the whole capacity of each GPU, by UUID."""
    return {gpu.uuid: Part(gpu.most_bytes, _WHOLE_CORE_PERCENT) for gpu in gpus}


def short(
    reason: Reason, wanted: Hold, others: Collection[Hold], totals: Mapping[str, Part]
) -> Refusal | None:
    """Return a refusal if `wanted` and `others` together exceed `totals` (by GPU) in a resource.
    reason: says whether `totals` are of the GPUs or of the pod's allocation."""
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
    """Return a text of the holders and their amounts, with the largest amount first."""
    ordered = sorted(amounts, key=itemgetter(0), reverse=True)
    texts = [f"{name} {amount}" for amount, name in ordered[:_NAMED_MAX]]
    if len(ordered) > _NAMED_MAX:
        texts.append(f"and {len(ordered) - _NAMED_MAX} more")
    return ", ".join(texts) or "none"
