"""Asking the runtime for a CDI device by its name, instead of applying its spec: where that works.

Pure. It is the operator's choice, for nodes whose default validator rejects the OCI hooks
that NVIDIA's specs hold. What it costs: the runtime applies the spec whole, so no file of it can be
left out; the spec is the one in the runtime's own directories; and runtimes before these drop
the request and say nothing, so that a container would run without its card. There it is refused.
"""

from __future__ import annotations

from nri_plugin.protocol import runtimes


def problem(runtime: str, version: str) -> str | None:
    """Why this runtime cannot be asked; None: it can."""
    if runtimes.parse(version) is None:
        return f"the version of {runtime}, {version!r}, is not understood"
    release = runtimes.find(runtime, version)
    if release is not None and release.carries_cdi:
        return None
    return (
        f"{runtime} {version} drops CDI devices that a plugin asks for; 1.7.30 or later of 1.7,"
        " or 2.1 or later, is needed"
    )
