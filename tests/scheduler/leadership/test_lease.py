"""The Lease between JSON and a value: reading, and writing over an existing object."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.kube.fields import Json
from scheduler.leadership import lease
from scheduler.leadership.lease import Record

RAW: dict[str, Any] = {
    "metadata": {
        "name": names.LEASE_SCHEDULER,
        "namespace": names.NAMESPACE,
        "resourceVersion": "17",
        "uid": "u",
        "labels": {"kept": "yes"},
        "managedFields": [{}],
        "annotations": {
            "kept": "too",
            names.ANNOTATION_INSTALLATION: "here",
            names.ANNOTATION_CANDIDATE: '{"by": "b", "installation": "there", "count": 3}',
        },
    },
    "spec": {
        "holderIdentity": "a",
        "leaseTransitions": 4,
        "leaseDurationSeconds": 8,
        "renewTime": "t1",
        "acquireTime": "t0",
        "strategy": "kept",
    },
}


@pytest.mark.parametrize(
    "said",
    ["{", "[" * 100_000, "[]", '{"by": 1, "installation": ""}', '{"by": "b"}'],
    ids=["not JSON", "deep", "a list", "a number", "half"],
)
def test_a_campaign_that_cannot_be_read_is_none(said: str) -> None:
    raw = {"metadata": {"annotations": {names.ANNOTATION_CANDIDATE: said}}}
    assert lease.read(raw).campaign is None


@pytest.mark.parametrize(
    "raw",
    [{}, {"metadata": None, "spec": []}, {"spec": {"leaseTransitions": "4", "renewTime": None}}],
    ids=["empty", "of other types", "of other values"],
)
def test_missing_fields_of_a_lease_are_empty(raw: Json) -> None:
    assert lease.read(raw) == Record("", 0, "", 0, "", raw=raw)


def test_what_is_not_ours_is_written_back() -> None:
    body = lease.written(lease.read(RAW))
    assert body["spec"] == RAW["spec"]
    metadata = dict(RAW["metadata"])
    del metadata["managedFields"]
    assert body["metadata"] == metadata
    assert body["kind"] == "Lease"


def test_a_released_lease_keeps_its_term() -> None:
    back = lease.written(lease.released(lease.read(RAW)))
    assert back["spec"]["holderIdentity"] == "" and back["spec"]["leaseTransitions"] == 4
    assert names.ANNOTATION_CANDIDATE not in back["metadata"]["annotations"]


def test_a_waiting_holder_is_written_and_read() -> None:
    waiting = lease.written(Record("a", 1, "here", 8, "t0", fencing_pending=True))
    assert lease.read(waiting).fencing_pending
    renewed = lease.written(Record("a", 1, "here", 8, "t1", raw=waiting))
    assert not lease.read(renewed).fencing_pending
