"""Detects NVIDIA's container runtime, and what its configuration accepts.

Where NVIDIA's runtime is containerd's default, an image with NVIDIA_VISIBLE_DEVICES=all gets all
GPUs without limits, and NRI does not show this. containerd writes the path of the OCI runtime's
program into each sandbox's bundle. Blocks, except `runs`, which reads a small file on a tmpfs.
Source: containerd's cmd/containerd-shim-runc-v2/runc (WriteRuntime), NVIDIA's container toolkit
(1.17 to 1.20).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nri_plugin.host import bundle
from nri_plugin.policy.nvidia import Toolkit

_PROGRAM: Final = "nvidia-container-runtime"
_CONFIG: Final = "nvidia-container-runtime/config.toml"
OPERATORS_CONFIG: Final = Path("/usr/local/nvidia/toolkit/.config", _CONFIG)
"""The configuration's default path where GPU Operator has installed the toolkit."""
ACCEPT_VARIABLES: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
ACCEPT_MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
OTHER_VARIABLES: Final = "swarm-resource"


def default(containerd_state: Path, sandbox_ids: Iterable[str]) -> str | None:
    """Return the program of containerd's default runtime; None if no sandbox shows it. sandbox_ids:
    sandboxes with the default runtime handler. The newest sandbox counts, because the default may
    have changed since older ones started."""
    programs = [_program(containerd_state, each) for each in sandbox_ids]
    newest = max(filter(None, programs), default=None)
    return newest[1] if newest else None


def runs(containerd_state: Path, sandbox_id: str) -> bool:
    """Return whether NVIDIA's runtime runs the containers of this sandbox."""
    program = _program(containerd_state, sandbox_id)
    return program is not None and is_nvidias(program[1])


def is_nvidias(program: str) -> bool:
    return program.rpartition("/")[2].startswith(_PROGRAM)


def toolkit(program: str, host: Path) -> Toolkit:
    """Return which requests the runtime accepts: the defaults if its configuration is unreadable.
    host: path at which this process sees the host's root directory."""
    try:
        return read(file(program, host))
    except (OSError, ValueError):
        return Toolkit()


def read(file: Path) -> Toolkit:
    """Return which requests for GPUs a configuration accepts. Raises OSError and ValueError."""
    config = tomllib.loads(file.read_text())
    return Toolkit(
        bool(config.get(ACCEPT_VARIABLES, True)),
        bool(config.get(ACCEPT_MOUNTS, False)),
        str(config.get(OTHER_VARIABLES) or ""),
    )


def problem(program: str, accepted: Toolkit, host: Path) -> str:
    """Return why the agent cannot keep containers without a share from GPUs; "": it can."""
    if not (accepted.other_variables and accepted.of_unprivileged):
        return ""
    return (
        f"containerd's default runtime is {program}: it gives GPUs, without a limit, to each"
        f" container that sets {accepted.other_variables}: remove {OTHER_VARIABLES} from"
        f" {'/' / file(program, host).relative_to(host)}"
    )


def _program(containerd_state: Path, sandbox_id: str) -> tuple[int, str] | None:
    """Return the sandbox's creation time in nanoseconds, and its OCI runtime's program."""
    try:
        file = bundle.directory(containerd_state, sandbox_id) / "runtime"
        return file.stat().st_mtime_ns, file.read_text().strip()
    except (OSError, ValueError):
        return None


def file(program: str, host: Path) -> Path:
    """Return the configuration file. GPU Operator's toolkit has it below its own directory."""
    beside = host / program.rpartition("/")[0].lstrip("/") / ".config" / _CONFIG
    return beside if os.path.isfile(beside) else host / "etc" / _CONFIG
