"""Detects whether SELinux keeps containers from the agent's files.

The agent does not label them. Where containerd labels containers (enable_selinux), a container that
may not read /etc/ld.so.preload runs without its limit. containerd writes the label into the bundle
of each sandbox, except that of a privileged pod. Blocks: run it in a thread.
Source: containerd's internal/cri/server (sandbox_run_linux.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import orjson

from nri_plugin.host import bundle

UNSUPPORTED: Final = (
    "SELinux is enforcing for containers: not supported: the agent does not label its files, and a"
    " container that cannot read them runs without its limit"
)
DO: Final = "set it to permissive on nodes whose GPUs are shared"

_ENFORCING: Final = "1"


def enforcing(host: Path) -> bool:
    try:
        return (host / "sys/fs/selinux/enforce").read_text().strip() == _ENFORCING
    except OSError:
        return False


def problem(containerd_state: Path, sandbox_ids: Iterable[str], host: Path) -> str | None:
    """Return why this node cannot hold shares; "": SELinux is not enforcing; None: it is, and none
    of these sandboxes has a label. host: the host's root directory as seen here."""
    if not enforcing(host):
        return ""
    labelled = any(_label(containerd_state, each) for each in sandbox_ids)
    return f"{UNSUPPORTED}; {DO}" if labelled else None


def _label(containerd_state: Path, sandbox_id: str) -> str:
    try:
        spec = orjson.loads((bundle.of(containerd_state, sandbox_id) / "config.json").read_bytes())
        return str(spec["process"].get("selinuxLabel", ""))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
