"""Reads the Leases of agents and of kube-scheduler.

An unreadable field counts as absent. An agent without a readable renewal has not reported.
kube-scheduler's Lease with an unreadable time permits no write.
"""

from __future__ import annotations

import math
from datetime import datetime

from gpuslice.contract import names
from gpuslice.kube.fields import Json, at, texts
from scheduler.kubernetes.facts import LeaseFacts, SchedulerLease


def agent_lease(raw: Json) -> LeaseFacts | None:
    """Read the Lease of a node's agent. Return None for another component's Lease."""
    metadata = at(raw, "metadata")
    name = str(metadata.get("name", ""))
    ours = metadata.get("namespace") == names.NAMESPACE
    if not ours or not name.startswith(names.LEASE_AGENT_PREFIX):
        return None
    ready = texts(metadata, "annotations").get(names.ANNOTATION_READY, "readiness not reported")
    beat = str(at(raw, "spec").get("renewTime") or "")
    return LeaseFacts(
        name=name.removeprefix(names.LEASE_AGENT_PREFIX),
        beat=beat,
        not_ready="" if ready == "true" else ready or "no reason given",
        renewed_s=_epoch_s(beat),
    )


def scheduler_lease(raw: Json) -> SchedulerLease | None:
    """Read kube-scheduler's Lease. Return None for another component's Lease."""
    metadata, spec = at(raw, "metadata"), at(raw, "spec")
    where = metadata.get("namespace"), metadata.get("name")
    if where != (names.NAMESPACE, names.LEASE_KUBE_SCHEDULER):
        return None
    duration_s = spec.get("leaseDurationSeconds")
    acquired_s = _epoch_s(str(spec.get("acquireTime") or ""))
    renewed_s = _epoch_s(str(spec.get("renewTime") or ""))
    return SchedulerLease(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=duration_s if isinstance(duration_s, int) else 0.0,
        acquired_s=math.inf if acquired_s is None else acquired_s,
        renewed_s=-math.inf if renewed_s is None else renewed_s,
    )


def _epoch_s(text: str) -> float | None:
    """Convert a MicroTime to seconds since the epoch. Return None if it is unreadable."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo is not None else None
