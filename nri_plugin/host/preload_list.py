"""Merges an image's preload file into ours.

Pure. Files are parsed as glibc's loader does. A "#" starts a comment anywhere in a line. Blanks,
tabs, line ends and colons separate names. A NUL ends the file. Our lines come first, because the
symbols of earlier libraries take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_BYTES: Final = 4096
"""Limit of a preload file: one page of the small file system that the container's files are on."""

_COMMENT: Final = re.compile(rb"#[^\n]*")
_SEPARATORS: Final = re.compile(rb"[: \t\n]+")


def entries(data: bytes) -> Sequence[bytes]:
    """Return the names that the loader finds in a preload file, in its order."""
    read, _, _ = _COMMENT.sub(b" ", data).partition(b"\0")
    return tuple(name for name in _SEPARATORS.split(read) if name)


def merged(ours: bytes, theirs: Sequence[bytes]) -> bytes:
    """Append to the lines of `ours` the names of `theirs` that they do not contain. The caller must
    refuse a result of more than MAX_BYTES."""
    known = dict.fromkeys(entries(ours))
    more = dict.fromkeys(name for name in theirs if name not in known)
    return ours + b"".join(name + b"\n" for name in more)
