"""The error of a request to the API server, without the client: pure code judges it too."""

from __future__ import annotations

from typing import Final

UNREACHABLE: Final = "Unreachable"
"""Reason of our own error: no connection, so no request was sent."""
NO_ANSWER: Final = "NoAnswer"
"""Reason of our own error: a request was sent and no answer arrived."""


class KubeError(Exception):
    """The API server rejected a request, or did not answer. status: the HTTP status; 0 if no answer
    arrived. reason: Kubernetes' reason (NotFound, Conflict, Expired, ...), or UNREACHABLE or
    NO_ANSWER."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.reason = reason
