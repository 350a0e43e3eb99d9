"""Files and sockets of a host, as other programs leave them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        yield made


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with bound(path) as made:
        made.listen()
        yield made
