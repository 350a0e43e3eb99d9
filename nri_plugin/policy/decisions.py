"""The outcome of one request of the runtime; answers.py creates one for every answer.

Plain data, no behaviour. observer.py counts and logs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request was answered; values are the metric's label and the log's field."""

    ADJUSTED = "adjusted"
    """With an adjustment."""
    PASSED = "passed"
    """Without an adjustment or objection."""
    REFUSED = "refused"
    """With an error by decision; a reason is given."""
    LATE = "late"
    """With an error, because the handler did not finish in time."""
    ERROR = "error"
    """With an error caused by a bug in this agent; its traceback is logged."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer. Names are the tenant's and unchecked; "" if the request has none."""

    request: str
    outcome: Outcome
    duration_s: float
    """From the request's arrival to the last byte of the answer."""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    container_id: str = ""
    reason: str = ""
    """Name in errors.Reason; "" unless refused."""
    text: str = ""
    """The error text sent to the runtime, if any."""
    error: BaseException | None = None
    pods: int | None = None
    containers: int | None = None
    """For Synchronize: the number of containers in it."""
