"""Rebuilds the agent's state after its own or the runtime's restart, from the running containers.

Pure. A grant file overrides the container's claim, because it is what is in force. If it is
missing, also because the container was created without the agent, the claim gives the container's
share, so that the GPU is not granted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuslice.contract import grant_file, names
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold
from nri_plugin.policy.model import Claim, ClaimSource, Gpu, Mount, Pod, Share
from nri_plugin.policy.plan import POD_KEY_PREFIX
from nri_plugin.policy.refusals import Refused


class Stray(StrEnum):
    """Fault of a running container; values are the metric's label."""

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
    """A container that the runtime lists. key: the files of ours that it has mounted, if any.
    waiting: created, and not started."""

    id: str
    name: str
    pod: Pod
    key: str | None
    stopped: bool = False
    waiting: bool = False
    nodes: Sequence[str] = ()
    """The device nodes of GPUs that it has."""
    mounts: Sequence[Mount] = ()
    """Empty unless it runs."""
    missed: bool = False
    """NVIDIA's runtime gave it GPUs, which this agent would have prevented."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The node's state. users: container ids by the key of the files that they mount."""

    users: Mapping[str, AbstractSet[str]]
    holds: Sequence[Hold]
    strays: Sequence[tuple[Stray, Running]] = field(default_factory=tuple)


def survey(
    running: Iterable[Running],
    grants: Mapping[str, grant_file.Grant],
    gpus: Sequence[Gpu],
    claims: ClaimSource,
    whole: AbstractSet[str] = frozenset(),
) -> Survey:
    """grants: by key, those whose files exist and are valid. whole: NAMESPACE/NAME or UID of
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
            # The agent's own pod has every GPU's node.
            theirs = one.pod.namespace != names.NAMESPACE
            holder = {f"{one.pod.namespace}/{one.pod.name}", one.pod.uid}
            if one.nodes and theirs and whole.isdisjoint(holder):
                strays.append((Stray.FOREIGN_GPU, one))
            continue
        grant = grants.get(one.key)
        if grant is None:
            strays.append((Stray.FILES_LOST, one))
        shares = _shares(one.pod, grant, claims) if grant else claim.shares if claim else ()
        shared = one.key.startswith(POD_KEY_PREFIX)
        holds.append(ledger.hold(one.id, one.key, shared, one.pod, one.name, shares))
    return Survey(users, holds, strays)


def _unadjusted(one: Running, claim: Claim) -> Hold:
    """Return the hold of a container that has no files. Its share of a pod's grant is that of the
    pod's other containers."""
    key = f"{POD_KEY_PREFIX}{one.pod.uid}" if claim.shared else one.id
    hold = ledger.hold(one.id, key, claim.shared, one.pod, one.name, claim.shares)
    return replace(hold, adjusted=False)


def _place(one: Running) -> tuple[str, str]:
    """Return what only one container has at a time. A runtime that was killed between a container's
    creation and its start still lists it as created; the kubelet never starts it, but creates
    another."""
    return one.pod.uid, one.name


def _claim_of(one: Running, gpus: Sequence[Gpu], claims: ClaimSource) -> Claim | None:
    """Return the claim, possibly empty; None if it cannot be fulfilled."""
    try:
        return claims.claim(one.pod, one.name, gpus) or Claim()
    except Refused:
        return None


def _shares(pod: Pod, grant: grant_file.Grant, claims: ClaimSource) -> Sequence[Share]:
    return [
        Share(
            gpu.uuid,
            gpu.minor,
            gpu.limit_bytes,
            gpu.core_percent,
            claims.is_uncapped(pod, gpu.uuid, gpu.minor),
        )
        for gpu in grant.gpus
    ]
