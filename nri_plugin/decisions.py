"""What became of one request of the runtime: the value that answers.py makes of every answer.

Plain data, no behaviour; read by observer.py, which counts it and writes it down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request was answered; values are the metric's label and the log's field."""

    ADJUSTED = "adjusted"
    """With an adjustment of ours."""
    PASSED = "passed"
    """With nothing to say against it, or to add."""
    REFUSED = "refused"
    """With an error, on purpose: a reason is given."""
    LATE = "late"
    """With an error in place of an answer that was not there in time."""
    ERROR = "error"
    """With an error, by a fault of this agent: a bug, its traceback is logged."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer. Names are the tenant's and unchecked; empty where the request has none."""

    request: str
    outcome: Outcome
    duration_s: float
    """From the request's arrival to the answer's last byte."""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    container_id: str = ""
    reason: str = ""
    """Name in errors.Reason; empty unless refused."""
    text: str = ""
    """What the runtime was told where it was told an error."""
    error: BaseException | None = None
    pods: int | None = None
    containers: int | None = None
    """Of a Synchronize: how many it brought."""
