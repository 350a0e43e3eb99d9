"""What the API server's answers about a Binding mean: whether it was done, and how the pod stands.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kube.client import UNREACHABLE, KubeError
from scheduler import pending
from scheduler.pending import Pending

Json = Mapping[str, Any]

_RETRYABLE: Final = frozenset({401, 429})
_UNDECIDED: Final = frozenset({408, 409})


class Verdict(Enum):
    """Of a Binding that was not answered with success."""

    REFUSED = "was not done and will not be"
    NOT_DONE = "was not done, and may be if it is sent again"
    UNKNOWN = "may have been done, or may be yet"


def verdict(error: KubeError) -> Verdict:
    """409 is what the API server says of a pod that is bound or has changed, and of every failure
    of its store that it has no word for, a time-out after the write among them."""
    if error.reason == UNREACHABLE or error.status in _RETRYABLE:
        return Verdict.NOT_DONE
    if 400 <= error.status < 500 and error.status not in _UNDECIDED:
        return Verdict.REFUSED
    return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Seen:
    """The pod as the API server has it now. gone: there is none of that UID."""

    gone: bool
    deleting: bool
    node: str
    asked: Pending


def seen(raw: Json, uid: str) -> Seen:
    """raw: the pod of that name; {} where there is none."""
    metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    return Seen(
        gone=metadata.get("uid") != uid,
        deleting=bool(metadata.get("deletionTimestamp")),
        node=spec.get("nodeName") or "",
        asked=pending.read(raw),
    )
