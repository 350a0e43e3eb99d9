"""The lines of a preload file: what the dynamic loader would read in an image's, added to ours.

Pure. Reads as glibc's loader does: a "#" ends its line anywhere, names are separated by blanks,
tabs, line ends and colons, and a NUL ends the file. Ours come first, so that its answers are
those that programs meet, whatever the image's libraries define.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_BYTES: Final = 4096
"""Of a preload file of ours, whole: one page of the container's own small file system."""

_COMMENT: Final = re.compile(rb"#[^\n]*")
_SEPARATORS: Final = re.compile(rb"[: \t\n]+")


def entries(data: bytes) -> Sequence[bytes]:
    """The names that the loader finds in a preload file, in its order."""
    read, _, _ = _COMMENT.sub(b" ", data).partition(b"\0")
    return tuple(name for name in _SEPARATORS.split(read) if name)


def merged(ours: bytes, theirs: Sequence[bytes]) -> bytes:
    """The file with `ours` first, then the names of the image that are not there yet.

    ours: whole lines. The result may be longer than MAX_BYTES; then it cannot be used.
    """
    known = dict.fromkeys(entries(ours))
    more = dict.fromkeys(name for name in theirs if name not in known)
    return ours + b"".join(name + b"\n" for name in more)
