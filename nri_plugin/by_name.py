"""Asking the runtime for a CDI device by its name, instead of applying its spec: where that works.

Pure tables. It is the operator's choice, for nodes whose default validator rejects the OCI hooks
that NVIDIA's specs hold. What it costs: the runtime applies the spec whole, so no file of it can be
left out; the spec is the one in the runtime's own directories; and runtimes before these drop
the request and say nothing, so that a container would run without its card. There it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

Version = tuple[int, int, int]

_CARRIES_CDI: Final[Mapping[str, Sequence[tuple[Version, Version]]]] = {
    "containerd": (((1, 7, 30), (2, 0, 0)), ((2, 1, 0), (1 << 31, 0, 0))),
}
"""Releases, from the first to before the second, that give a plugin's CDI devices to a container.
1.7 does so where its enable_cdi is on, and fails the container otherwise."""


def problem(runtime: str, version: str) -> str | None:
    """Why this runtime cannot be asked; None: it can."""
    known = _CARRIES_CDI.get(runtime.lower())
    if known is None:
        return (
            f"{runtime or 'the runtime'} is not known to apply CDI devices that a plugin asks for"
        )
    found = parse(version)
    if found is None:
        return f"the version of {runtime}, {version!r}, is not understood"
    if any(first <= found < end for first, end in known):
        return None
    return (
        f"{runtime} {version} drops CDI devices that a plugin asks for; 1.7.30 or later of 1.7,"
        " or 2.1 or later, is needed"
    )


def parse(version: str) -> Version | None:
    """`v2.4.2` and what distributions make of it."""
    match = re.match(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?!\d)", version, re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
