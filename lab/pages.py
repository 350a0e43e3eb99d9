"""Pages of the product's programs (probes and metrics), read over HTTP."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path


def get(
    place: str | Path | Sequence[str | int],
    path: str,
    timeout_s: float = 30.0,
    posted: str | None = None,
) -> tuple[int, str]:
    """Return status and body. place: a socket's path, or host and port. posted: the body of a POST;
    None: GET. Raises OSError or HTTPException."""
    family = socket.AF_UNIX if isinstance(place, str | Path) else socket.AF_INET
    with contextlib.closing(HTTPConnection("localhost", timeout=timeout_s)) as connection:
        connection.sock = socket.socket(family)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(place) if isinstance(place, str | Path) else tuple(place))
        connection.request("GET" if posted is None else "POST", path, posted)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
