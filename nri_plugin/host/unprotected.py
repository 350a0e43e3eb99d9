"""Detects whether NVIDIA's runtime gives every GPU of the node to containers without a share.

If it is containerd's default runtime, an image with NVIDIA_VISIBLE_DEVICES=all gets all GPUs
without a limit, and NRI does not report it. containerd writes the OCI runtime's program into the
bundle of each sandbox, so the sandbox of any pod without a RuntimeClass shows the default.
Blocks: run it in a thread.
Source: containerd's cmd/containerd-shim-runc-v2/runc (WriteRuntime), NVIDIA's container toolkit.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nri_plugin.host import bundle
from nri_plugin.policy import nvidia

HANDLERS: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""Runtime handlers that select NVIDIA's runtime whatever the default is."""

_PROGRAM: Final = "nvidia-container-runtime"
_CONFIG: Final = "nvidia-container-runtime/config.toml"
_ACCEPT: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"


def problem(containerd_state: Path, sandbox_ids: Iterable[str], host: Path) -> str | None:
    """Return why this node cannot hold shares; "": it can; None: no sandbox shows the default
    runtime.

    sandbox_ids: of pods with the default runtime handler. The newest counts: the default may have
    changed while older ones run. host: the host's root directory as seen here.
    """
    found = [_program(containerd_state, each) for each in sandbox_ids]
    newest = max(filter(None, found), default=None)
    if newest is None:
        return None
    program = newest[1]
    if not program.rpartition("/")[2].startswith(_PROGRAM):
        return ""
    file = _config(program, host)
    if not _accepts(file):
        return ""
    return (
        f"containerd's default runtime is {program}: it gives all GPUs, without a limit, to each"
        f" container with NVIDIA_VISIBLE_DEVICES=all; set {_ACCEPT} = false in"
        f" {'/' / file.relative_to(host)}, or set containerd's default runtime to runc"
    )


def gets_all(runtime_handler: str, env: Iterable[str], by_default: bool) -> bool:
    """Whether NVIDIA's runtime gives GPUs to a container with these variables.

    by_default: it is the node's default runtime.
    """
    if runtime_handler not in HANDLERS and not (by_default and not runtime_handler):
        return False
    split = (line.partition("=") for line in env)
    return any(nvidia.names_gpus(name, value) for name, _, value in split)


def _program(containerd_state: Path, sandbox_id: str) -> tuple[int, str] | None:
    """When the sandbox was made, in nanoseconds, and its OCI runtime's program."""
    try:
        file = bundle.of(containerd_state, sandbox_id) / "runtime"
        return file.stat().st_mtime_ns, file.read_text().strip()
    except (OSError, ValueError):
        return None


def _config(program: str, host: Path) -> Path:
    """Return the configuration's path; GPU Operator's toolkit has it beside the program."""
    beside = host / program.rpartition("/")[0].lstrip("/") / ".config" / _CONFIG
    return beside if os.path.isfile(beside) else host / "etc" / _CONFIG


def _accepts(file: Path) -> bool:
    try:
        return bool(tomllib.loads(file.read_text()).get(_ACCEPT, True))
    except (OSError, ValueError):
        return True
