"""Merges an image's preload file into ours.

Pure. Parses as glibc's loader does: "#" starts a comment anywhere in a line; names are separated by
blanks, tabs, line ends and colons; a NUL ends the file. Our lines come first, so that our library's
symbols take precedence over those of the image's libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_BYTES: Final = 4096
"""Limit of a whole preload file: one page of the container's own small file system."""

_COMMENT: Final = re.compile(rb"#[^\n]*")
_SEPARATORS: Final = re.compile(rb"[: \t\n]+")


def entries(data: bytes) -> Sequence[bytes]:
    """Return the names that the loader finds in a preload file, in its order."""
    read, _, _ = _COMMENT.sub(b" ", data).partition(b"\0")
    return tuple(name for name in _SEPARATORS.split(read) if name)


def merged(ours: bytes, theirs: Sequence[bytes]) -> bytes:
    """Return the file with `ours` first, then the image's names that it does not contain yet. ours:
    complete lines. A result longer than MAX_BYTES cannot be used."""
    known = dict.fromkeys(entries(ours))
    more = dict.fromkeys(name for name in theirs if name not in known)
    return ours + b"".join(name + b"\n" for name in more)
