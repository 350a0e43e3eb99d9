"""The scheduler's Lease as a value: holder, term, renewal and campaign.

Pure. Fields of other writers (labels, annotations) are written back as they were read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.fields import Json, at

COLLECTION: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
PATH: Final = f"{COLLECTION}/{names.LEASE_SCHEDULER}"
NAME: Final = f"{names.NAMESPACE}/{names.LEASE_SCHEDULER}"


@dataclass(frozen=True, slots=True)
class Campaign:
    """A process that receives calls from its kube-scheduler and competes for the Lease. count:
    increases while it does."""

    identity: str
    installation: str
    count: int


@dataclass(frozen=True, slots=True)
class Record:
    """The Lease as read, or as it will be written. holder "": released. term: changes with the
    holder. renewed: an opaque text that changes with each renewal; no clock is compared with it.
    fencing_pending: an earlier holder's writes may still arrive."""

    holder: str
    term: int
    installation: str
    duration_s: float
    renewed: str
    acquired: str = ""
    fencing_pending: bool = False
    campaign: Campaign | None = None
    raw: Json | None = None
    """The object as read, with its resourceVersion."""

    @property
    def uid(self) -> str:
        """UID of the object. A recreated Lease of the same name is another Lease."""
        return str(at(self.raw or {}, "metadata").get("uid") or "")

    @property
    def writer(self) -> str:
        """The fencing token in a Binding; a policy of the API server computes the same text from
        the Lease."""
        return f"{self.holder} {self.term}"


def read(raw: Json) -> Record:
    """Never raises: unreadable content of other writers counts as absent."""
    metadata, spec = at(raw, "metadata"), at(raw, "spec")
    annotations = at(metadata, "annotations")
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        term=_number(spec.get("leaseTransitions")),
        installation=str(annotations.get(names.ANNOTATION_INSTALLATION) or ""),
        duration_s=_number(spec.get("leaseDurationSeconds")),
        renewed=str(spec.get("renewTime") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        fencing_pending=names.ANNOTATION_FENCING_PENDING in annotations,
        campaign=_campaign(annotations.get(names.ANNOTATION_CANDIDATE)),
        raw=raw,
    )


def written(record: Record) -> Json:
    """The body of a PUT (or of a POST if there was no Lease): the object as read, changed by the
    record. Without a campaign in the record, the Lease's campaign is removed."""
    raw = record.raw or {}
    metadata = dict(at(raw, "metadata"))
    metadata.pop("managedFields", None)
    annotations = dict(at(metadata, "annotations"))
    annotations[names.ANNOTATION_INSTALLATION] = record.installation
    annotations.pop(names.ANNOTATION_CANDIDATE, None)
    annotations.pop(names.ANNOTATION_FENCING_PENDING, None)
    if record.fencing_pending:
        annotations[names.ANNOTATION_FENCING_PENDING] = "true"
    if record.campaign is not None:
        annotations[names.ANNOTATION_CANDIDATE] = _candidate(record.campaign)
    spec: dict[str, Any] = {
        **at(raw, "spec"),
        "holderIdentity": record.holder,
        "leaseTransitions": record.term,
        "leaseDurationSeconds": int(record.duration_s),
        "renewTime": record.renewed,
        "acquireTime": record.acquired,
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            **metadata,
            "namespace": names.NAMESPACE,
            "name": names.LEASE_SCHEDULER,
            "annotations": annotations,
        },
        "spec": spec,
    }


def released(record: Record) -> Record:
    """The next holder may bind at once. The term stays, so no term is ever reused."""
    return replace(record, holder="", campaign=None)


def _candidate(campaign: Campaign) -> str:
    fields = {"by": campaign.identity, "installation": campaign.installation}
    return json.dumps({**fields, "count": campaign.count})


def candidate_patch(campaign: Campaign) -> Json:
    """A merge patch; it changes no field that the holder writes."""
    return {"metadata": {"annotations": {names.ANNOTATION_CANDIDATE: _candidate(campaign)}}}


def _campaign(text: object) -> Campaign | None:
    if not isinstance(text, str):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    by, installation = fields.get("by"), fields.get("installation")
    if not isinstance(by, str) or not isinstance(installation, str):
        return None
    return Campaign(by, installation, _number(fields.get("count")))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
