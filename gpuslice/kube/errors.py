"""The error of a request to the API server, in a module of its own so that pure code can use it."""

from __future__ import annotations

from typing import Final

UNREACHABLE: Final = "Unreachable"
"""Reason of a KubeError: no connection could be made, so no request was sent."""
NO_ANSWER: Final = "NoAnswer"
"""Reason of a KubeError: a request was sent, but no answer arrived."""
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404


class KubeError(Exception):
    """The API server rejected a request, or did not answer. status: the HTTP status; 0 if no answer
    arrived. reason: Kubernetes' reason (NotFound, Conflict, Expired, ...), or UNREACHABLE or
    NO_ANSWER."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.reason = reason
