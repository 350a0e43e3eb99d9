"""Rebuilds the agent's state after its own or the runtime's restart, from the running containers.

Pure. A container's share comes from its grant file, because the library enforces that file. If the
file is missing, for example because no agent ran at the container's creation, the share comes from
the claim. Otherwise the GPU could be granted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuslice.contract import grant_file, names
from nri_plugin.policy import ledger
from nri_plugin.policy.front_ends import FrontEnds
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Claim, Gpu, Mount, Pod, Share
from nri_plugin.policy.refusals import Refused


class Stray(StrEnum):
    """The fault of a running container. The values are labels of the metric."""

    NOT_ADJUSTED = "not_adjusted"
    FILES_LOST = "files_lost"
    FOREIGN_GPU = "foreign_gpu"
    NVIDIA_RUNTIME = "nvidia_runtime"


ADVICE: Mapping[Stray, str] = {
    Stray.NOT_ADJUSTED: "container without its GPU: it was created while this agent did not run;"
    " delete the pod to recreate it",
    Stray.FILES_LOST: "container whose grant is missing on this host: its limit is enforced, but"
    " cannot be changed or read any more; delete the pod to recreate it",
    Stray.FOREIGN_GPU: "container with a GPU that another component injected, without a limit: find"
    " the runtime, device plugin or NRI plugin that injected it",
    Stray.NVIDIA_RUNTIME: "container with GPUs from NVIDIA's runtime, without a limit: it was"
    " created while this agent did not run; delete the pod to recreate it without them",
}


@dataclass(frozen=True, slots=True)
class Running:
    """A container that the runtime lists. key: the key of the files that it has mounted, if any.
    waiting: it is created, but not started."""

    id: str
    name: str
    pod: Pod
    key: str | None
    stopped: bool = False
    waiting: bool = False
    nodes: Sequence[str] = ()
    """The container's device nodes of NVIDIA's driver."""
    mounts: Sequence[Mount] = ()
    """The container's mounts. Empty unless the container runs."""
    cdi_names: Sequence[str] = ()
    missed: bool = False
    """Whether NVIDIA's runtime gave the container GPUs that a running agent would have hidden."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The rebuilt state. users: IDs of containers, by the key of the files that they mount."""

    users: Mapping[str, AbstractSet[str]]
    holds: Sequence[Hold]
    strays: Sequence[tuple[Stray, Running]] = field(default_factory=tuple)


def survey(
    running: Iterable[Running],
    grants: Mapping[str, grant_file.Grant],
    gpus: Sequence[Gpu],
    claims: FrontEnds,
    whole: AbstractSet[str] = frozenset(),
) -> Survey:
    """Return the state. grants: the valid grant files, by key. whole: NAMESPACE/NAME and UIDs of
    pods that hold GPUs whole."""
    users: dict[str, set[str]] = {}
    holds, strays = [], []
    listed = list(running)
    at_work = {_place(one) for one in listed if not one.stopped and not one.waiting}
    for one in listed:
        if one.key is not None:
            users.setdefault(one.key, set()).add(one.id)
        if one.stopped or (one.waiting and one.pod.uid and _place(one) in at_work):
            continue
        if one.missed:
            strays.append((Stray.NVIDIA_RUNTIME, one))
        claim = _claim_of(one, gpus, claims)
        if one.key is None:
            if claim is None or claim.shares:
                strays.append((Stray.NOT_ADJUSTED, one))
            if claim is not None and claim.shares:
                holds.append(_unadjusted(one, claim))
            # The agent's own pod has the device nodes of all GPUs.
            theirs = one.pod.namespace != names.NAMESPACE
            holder = {f"{one.pod.namespace}/{one.pod.name}", one.pod.uid}
            if one.nodes and theirs and whole.isdisjoint(holder):
                strays.append((Stray.FOREIGN_GPU, one))
            continue
        grant = grants.get(one.key)
        if grant is None:
            strays.append((Stray.FILES_LOST, one))
        shares = _shares(one.pod, grant, claims) if grant else claim.shares if claim else ()
        holds.append(ledger.hold(one.id, one.key, one.pod, one.name, shares))
    return Survey(users, holds, strays)


def _unadjusted(one: Running, claim: Claim) -> Hold:
    """Return the hold of a container without files. If the pod's containers share a grant, the hold
    has that grant's key."""
    key = ledger.grant_key(claim, one.pod.uid, one.id)
    return replace(ledger.hold(one.id, key, one.pod, one.name, claim.shares), adjusted=False)


def _place(one: Running) -> tuple[str, str]:
    """Return the pod's UID and the container's name. Of containers with equal results only one can
    run. A killed runtime may still list a container that it had not started, although the kubelet
    has created another container of that name."""
    return one.pod.uid, one.name


def _claim_of(one: Running, gpus: Sequence[Gpu], claims: FrontEnds) -> Claim | None:
    """Return the claim, without shares if the pod has none. None: the claim cannot be fulfilled."""
    try:
        return claims.claim(one.pod, one.name, one.cdi_names, gpus) or Claim()
    except Refused:
        return None


def _shares(pod: Pod, grant: grant_file.Grant, claims: FrontEnds) -> Sequence[Share]:
    return [
        Share(
            gpu.uuid,
            gpu.minor,
            gpu.limit_bytes,
            gpu.core_percent,
            claims.is_uncapped(pod, gpu.uuid, gpu.minor, gpu.core_percent),
        )
        for gpu in grant.gpus
    ]
