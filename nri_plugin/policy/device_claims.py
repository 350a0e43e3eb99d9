"""Claims of Dynamic Resource Allocation that this node has prepared: what each holds of which GPU.

Pure. The API server's claim says how much of a GPU a share has. The kubelet's Prepare names the
claim, and NRI names the share of a container by its CDI device. A name is believed only if the
claim was prepared, and is reserved for the container's pod. A pod can therefore gain nothing by a
forged name or variable.

A share belongs to its claim, not to a container. Containers with equal shares, also of several
pods, use one grant and count together. Its key has the names of its shares. kube-scheduler frees a
claim when its pod is deleted by force, before the pod's containers have stopped. Therefore `short`
sums what is prepared here, and what containers still hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuslice.contract import names, quantity
from gpuslice.contract.grant_file import Policy
from gpuslice.kube import fields
from gpuslice.kube.fields import Json, at, objects
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Claim, Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refusal, Refused, refuse, refused

_CDI_PREFIX: Final = f"{names.CDI_KIND_CLAIM}="
_SHARE_ID_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class ClaimedShare:
    """A share of a claim. name: of its CDI device. request, device, share_id: as in the claim's
    allocation."""

    name: str
    request: str
    device: str
    share_id: str
    memory_bytes: int
    core_percent: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared claim. pods: UIDs of the pods for which it is reserved."""

    uid: str
    namespace: str
    name: str
    pods: Sequence[str]
    shares: Sequence[ClaimedShare]


def device_name(gpu: Gpu) -> str:
    """Return the GPU's name in slices and allocations. An index could name another GPU later."""
    return gpu.uuid.lower()


def allocated(claim: Json, pool: str) -> Prepared:
    """Return what a ResourceClaim has of this node's pool. Raises Refused."""
    metadata, status = at(claim, "metadata"), at(claim, "status")
    where = f"claim {metadata.get('namespace')}/{metadata.get('name')}"
    ours = fields.allocated(claim, names.DRA_DRIVER)
    if not ours:
        raise refused(Reason.CLAIM_INVALID, where=where, problem="must be allocated")
    uid = str(metadata.get("uid"))
    pods = [str(each.get("uid")) for each in objects(status, "reservedFor")]
    shares = [_share(f"{where}: {each.get('request')}", uid, pool, each) for each in ours]
    return Prepared(uid, str(metadata["namespace"]), str(metadata["name"]), pods, shares)


def _share(where: str, uid: str, pool: str, result: Json) -> ClaimedShare:
    if result.get("adminAccess"):
        problem = "adminAccess: invalid value true: must be unset, because it has no limit"
        raise refused(Reason.CLAIM_INVALID, where=where, problem=problem)
    if result.get("pool") != pool:
        problem = f"pool: invalid value {result.get('pool')}: must be {pool}, this node"
        raise refused(Reason.CLAIM_INVALID, where=where, problem=problem)
    consumed, share_id = at(result, "consumedCapacity"), str(result.get("shareID") or "")
    memory, core = (
        quantity.parse(consumed.get(each)) for each in (names.CAPACITY_MEMORY, names.CAPACITY_CORE)
    )
    if not (share_id and isinstance(memory, quantity.Value) and isinstance(core, quantity.Value)):
        problem = "consumedCapacity: required value: must have memory and core"
        raise refused(Reason.CLAIM_INVALID, where=where, problem=problem)
    return ClaimedShare(
        f"{uid}-{share_id[:_SHARE_ID_SHOWN]}",
        str(result.get("request")),
        str(result.get("device")),
        share_id,
        memory.amount,
        core.amount,
    )


def named(cdi_names: Iterable[str]) -> Sequence[str]:
    """Return the shares that these CDI names name, each once."""
    ours = {name.removeprefix(_CDI_PREFIX) for name in cdi_names if name.startswith(_CDI_PREFIX)}
    return sorted(ours)


class DeviceClaims:
    """The prepared claims by UID. look_again: reads for which pods a claim is reserved
    now."""

    def __init__(self) -> None:
        self.prepared: Mapping[str, Prepared] = {}
        self.look_again: Callable[[Prepared], Awaitable[None]] | None = None

    def put(self, claim: Prepared) -> None:
        self.prepared = {**self.prepared, claim.uid: claim}

    def drop(self, uid: str) -> None:
        self.prepared = {key: each for key, each in self.prepared.items() if key != uid}

    def of_pod(self, uid: str) -> Mapping[str, ClaimedShare]:
        """Return the shares of the claims that are reserved for the pod, by name."""
        ours = (claim for claim in self.prepared.values() if uid in claim.pods)
        return {share.name: share for claim in ours for share in claim.shares}

    def of_others(self, uid: str, cdi_names: Iterable[str]) -> Sequence[Prepared]:
        """Return the claims that the CDI names name, but that are not reserved for the pod."""
        unknown = {*named(cdi_names)} - self.of_pod(uid).keys()
        return [c for c in self.prepared.values() if unknown & {share.name for share in c.shares}]

    def short(self, claim: Prepared, gpus: Sequence[Gpu], holds: Iterable[Hold]) -> Refusal | None:
        """Return why the claim does not fit beside the other claims, and beside containers whose
        claims are not prepared. gpus: all of the node's GPUs, also failed ones."""
        known = {device_name(gpu): gpu for gpu in gpus}
        try:
            wanted = _hold(claim, _resolve(claim.shares, known))
        except Refused as error:
            return error.refusal
        others = [each for each in self.prepared.values() if each.uid != claim.uid]
        counted = {share.name for each in (claim, *others) for share in each.shares}
        grants = {hold.key: hold for hold in holds}
        beside = [
            *(_hold(each, _sums(each.shares, known)) for each in others),
            *(h for key, h in grants.items() if not (ledger.claimed(key) or {key}) <= counted),
        ]
        return ledger.short(Reason.GPU_FULL, wanted, beside, ledger.whole(gpus))

    def claim(
        self, pod: Pod, cdi_names: Iterable[str], gpus: Sequence[Gpu], policy: Policy | None
    ) -> Claim:
        """Return the claim of a container with these CDI names. Raises Refused."""
        of_pod, wanted = self.of_pod(pod.uid), named(cdi_names)
        if refusal := self.unprepared(pod.uid, wanted):
            raise Refused(refusal)
        if not wanted:
            return Claim()
        known = {device_name(gpu): gpu for gpu in gpus}
        shares = _resolve([of_pod[name] for name in wanted], known)
        key = ledger.claim_key(wanted)
        return Claim(shares, shared=True, allocated=shares, policy=policy, key=key)

    def unprepared(self, uid: str, shares: Iterable[str]) -> Refusal | None:
        """Return why containers of the pod may not have these shares. None: they may."""
        unknown = {*shares} - self.of_pod(uid).keys()
        if not unknown:
            return None
        return refuse(Reason.CLAIM_NOT_PREPARED, device=f"{_CDI_PREFIX}{min(unknown)}")

    def used(self) -> Mapping[str, int]:
        """Return the bytes that prepared claims have of each device, by the device's name."""
        total: Counter[str] = Counter()
        for claim in self.prepared.values():
            for share in claim.shares:
                total[share.device] += share.memory_bytes
        return total


def _resolve(listed: Sequence[ClaimedShare], known: Mapping[str, Gpu]) -> Sequence[Share]:
    """Return what these shares have of each GPU together. Raises Refused if a GPU is missing or
    failed. known: the GPUs by their devices' names."""
    for share in listed:
        gpu, where = known.get(share.device), f"share {share.name}"
        if gpu is None:
            there = ", ".join(sorted(known)) or "none"
            raise refused(Reason.GPU_UNKNOWN, where=where, gpu=share.device, known=there)
        if gpu.problem:
            raise refused(Reason.GPU_UNHEALTHY, where=where, uuid=gpu.uuid, problem=gpu.problem)
    return _sums(listed, known)


def _sums(listed: Iterable[ClaimedShare], known: Mapping[str, Gpu]) -> Sequence[Share]:
    totals: dict[str, tuple[int, int]] = {}
    for share in (each for each in listed if each.device in known):
        memory, core = totals.get(share.device, (0, 0))
        totals[share.device] = memory + share.memory_bytes, core + share.core_percent
    return tuple(
        Share(known[device].uuid, known[device].minor, *both)
        for device, both in sorted(totals.items())
    )


def _hold(claim: Prepared, held: Sequence[Share]) -> Hold:
    """Return the claim's entry in the sum. Its pod has only the names that messages show."""
    pod = Pod(claim.uid, f"claim {claim.namespace}", claim.name)
    return replace(
        ledger.hold(claim.uid, claim.uid, pod, "", held), container=f"claim {claim.name}"
    )
