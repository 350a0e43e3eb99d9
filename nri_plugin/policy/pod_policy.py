"""The policy: (pod, container, its claim, this node) -> adjustment, refusal, or no change.

Pure: no clock, file, socket or protobuf. The same inputs give the same result, so that it can be
computed again when the runtime validates an adjustment. A ClaimSource has the container's claim;
annotation_claims.py is the one of Kubernetes.
Invariant: a container never runs without the limit it was granted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from contract import names
from nri_plugin.policy import injection, nvidia, preconditions
from nri_plugin.policy.model import (
    Adjustment,
    Claim,
    Container,
    Gpu,
    Paths,
    Pod,
    Rules,
    Specs,
    Untouched,
)
from nri_plugin.policy.refusals import Reason, refused

POD_KEY_PREFIX: Final = "pod-"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_NO_GPU: Final = ((names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE),)


class ClaimSource(Protocol):
    """Source of containers' claims on GPUs. A module may be one."""

    def may_claim(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        """Whether a pod may have claims; all others are answered at once."""

    def has_shares(self, pod: Pod) -> bool:
        """Whether the pod was given GPUs; a claim that cannot be read counts."""

    def claim(self, pod: Pod, container_name: str, gpus: Sequence[Gpu]) -> Claim | None:
        """Return the container's claim on these GPUs of the node; None: its pod has none. Raises
        Refused if it cannot be fulfilled, as by GPU_UNKNOWN for another GPU."""

    def is_uncapped(self, pod: Pod, uuid: str, minor: int) -> bool:
        """Whether the pod claims none of the GPU's compute; independent of the node's GPUs."""


def without_share(container: Container, claim: Claim | None) -> Adjustment | Untouched:
    """Return the result for a container without a share. claim: None if its pod requests
    nothing."""
    if claim is None:
        return Untouched()
    given = preconditions.given_gpu(container)
    if given:
        return Untouched(given)
    return Adjustment(_NO_GPU, warning=claim.warning or preconditions.names_gpus(container))


def with_share(
    pod: Pod, container: Container, claim: Claim, specs: Specs, paths: Paths, rules: Rules
) -> Adjustment:
    """Return the adjustment for a container with a share. Raises Refused."""
    preconditions.check_volumes(container, paths)
    preconditions.check_grant(pod, container, rules)
    if paths.library is None:
        raise refused(Reason.LIBRARY_MISSING, problem=paths.library_problem)
    key = grant_key(pod, container, claim.shared)
    hidden = nvidia.may_read_variables(pod.runtime_handler, paths.injection.nvidia_default)
    return injection.adjustment(container, key, claim, specs, paths, hidden)


def grant_key(pod: Pod, container: Container, shared: bool) -> str:
    """Return the directory name of the grant's files. Raises Refused if it is not a valid name."""
    used = {"pod uid": pod.uid, "container name": container.name}
    for what, name in (used if shared else {"container id": container.id}).items():
        if not _FILE_NAME.fullmatch(name):
            raise refused(Reason.IDENTITY_INVALID, what=what, value=name)
    return POD_KEY_PREFIX + pod.uid if shared else container.id
