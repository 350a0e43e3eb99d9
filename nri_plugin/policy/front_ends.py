"""The node's front end: whether pods request shares by annotations or by ResourceClaims. Pure.

The front end says which scheduler may allocate the node's GPUs, so that none is allocated twice. It
changes only after everything of the other one is gone for SETTLE_S, in which a pod that was placed
before reaches the node. A container that a claim names is served by the claim, whatever its pod's
annotations say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from gpuslice.contract import names
from nri_plugin.policy import annotation_claims, device_claims
from nri_plugin.policy.device_claims import DeviceClaims, Prepared
from nri_plugin.policy.model import Claim, Gpu, Pod
from nri_plugin.policy.refusals import Reason, refused

SETTLE_S: Final = 10.0


class FrontEnd(StrEnum):
    ANNOTATIONS = names.FRONT_END_ANNOTATIONS
    CLAIMS = names.FRONT_END_CLAIMS


class FrontEnds:
    """The current and the wanted front end, and the containers' claims by both."""

    def __init__(self, now: FrontEnd = FrontEnd.ANNOTATIONS) -> None:
        self.now = self.wanted = now
        self.devices = DeviceClaims()
        self._free_since_s: float | None = None

    def restore(self, prepared: Mapping[str, Prepared] | None) -> None:
        """Take over an earlier agent's claims. None: its front end was not `claims`."""
        if prepared is not None:
            self.now = self.wanted = FrontEnd.CLAIMS
            self.devices.prepared = prepared

    def want(self, label: str, default: FrontEnd, obstacle: str = "") -> str:
        """Set the wanted front end by the Node's label. Return why it is not followed, or "".
        obstacle: why this node cannot serve claims."""
        wanted, must = label or default, ""
        if wanted not in {*FrontEnd}:
            must = f"{names.FRONT_END_ANNOTATIONS} or {names.FRONT_END_CLAIMS}"
        elif wanted == FrontEnd.CLAIMS and obstacle:
            must = f"{names.FRONT_END_ANNOTATIONS}: {obstacle}"
        before, self.wanted = self.wanted, self.now if must else FrontEnd(wanted)
        if self.wanted is not before:
            self._free_since_s = None
        return must and f"label {names.LABEL_FRONT_END}: invalid value {wanted}: must be {must}"

    @property
    def leaves(self) -> str:
        """Return why nothing new may be allocated by the current front end. "": it may."""
        if self.now is self.wanted:
            return ""
        return f"the node moves from {self.now} to {self.wanted} (label {names.LABEL_FRONT_END})"

    def settle(self, is_free: bool, now_s: float) -> bool:
        """Change to the wanted front end after SETTLE_S in which nothing was held and offered.
        Return whether it changed."""
        if self.now is self.wanted or not is_free:
            self._free_since_s = None
            return False
        if self._free_since_s is None:
            self._free_since_s = now_s
        if now_s - self._free_since_s < SETTLE_S:
            return False
        self.now, self._free_since_s = self.wanted, None
        return True

    def may_claim(self, pod: Any, cdi_names: Iterable[str]) -> bool:
        """Whether a container with these CDI names may have claims. A fast test. pod: a Pod, or the
        runtime's message about it."""
        return (
            annotation_claims.may_claim(pod.labels, pod.annotations)
            or bool(device_claims.named(cdi_names))
            or bool(self.devices.of_pod(pod.uid))
        )

    def has_shares(self, pod: Pod) -> bool:
        """Whether the pod was allocated GPUs. True also if its claim cannot be read."""
        return bool(self.devices.of_pod(pod.uid)) or annotation_claims.has_shares(pod)

    def claim(
        self, pod: Pod, container: str, cdi_names: Iterable[str], gpus: Sequence[Gpu]
    ) -> Claim | None:
        """Return the claim of the container with this name and these CDI names. None: its pod has
        none. gpus: the node's GPUs. Raises Refused if the claim cannot be fulfilled, for example
        GPU_UNKNOWN for another node's GPU."""
        listed = [*cdi_names]
        if device_claims.named(listed) or self.devices.of_pod(pod.uid):
            policy = annotation_claims.compute_policy(pod, container)
            return self.devices.claim(pod, listed, gpus, policy)
        if self.now is FrontEnd.CLAIMS and annotation_claims.has_shares(pod):
            raise refused(Reason.CLAIMS_ONLY)
        return annotation_claims.claim(pod, container, gpus)

    def is_uncapped(self, pod: Pod, uuid: str, minor: int, core_percent: int) -> bool:
        """Whether a container with this percentage of the GPU claims memory, but no compute."""
        by_claim = bool(self.devices.of_pod(pod.uid))
        return not by_claim and annotation_claims.is_uncapped(pod, uuid, minor, core_percent)
