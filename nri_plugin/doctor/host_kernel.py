"""Collects facts from the host's kernel and device files, also if the doctor runs in a pod.

In a pod, /sys and the mount table are the container's own. The host's /sys and /dev are then read
below `root`, the path at which the pod sees the host's root directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nri_plugin.doctor.facts import DevChar
from nri_plugin.host.driver_root import DriverRoot
from nri_plugin.policy import mountinfo

_ENABLED: Final = "Y"


def dev_char(root: Path, driver_root: DriverRoot) -> DevChar:
    """Return the driver's device nodes, and those without a link in /dev/char."""
    numbers: dict[str, str] = {}
    directories = [root / "dev"]
    if driver_root.host != Path("/"):
        directories.append(driver_root.seen(str(driver_root.host / "dev")))
    for directory in directories:
        numbers |= dict(_nodes(directory))
    lacking = [
        path for number, path in numbers.items() if not os.path.lexists(root / "dev/char" / number)
    ]
    return DevChar(tuple(numbers.values()), tuple(lacking))


def _nodes(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the number (MAJOR:MINOR) and path of each of the driver's device nodes."""
    for node in (*sorted(directory.glob("nvidia*")), *sorted(directory.glob("nvidia-caps*/*"))):
        with contextlib.suppress(OSError):
            status = node.stat()
            if stat.S_ISCHR(status.st_mode):
                number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
                yield number, f"/dev/{node.relative_to(directory)}"


def apparmor(root: Path) -> bool:
    with contextlib.suppress(OSError):
        enabled = (root / "sys/module/apparmor/parameters/enabled").read_text()
        return enabled.strip() == _ENABLED
    return False


def propagates(mounts: str, path: Path) -> bool:
    """Return whether a mount made at `path` in this container reaches the host. mounts: the text of
    /proc/self/mountinfo. Later mounts hide earlier ones: the last above `path` counts."""
    lines = [line for line in mountinfo.parse(mounts) if path.is_relative_to(line.point)]
    return bool(lines) and lines[-1].shared


def agent_arguments(proc: Path = Path("/proc")) -> Sequence[str]:
    """Return the arguments of the agent that runs in this process's container; empty if none runs
    there. Processes with the same mount namespace are in the same container."""
    for process in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError):
            _, *words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_agent = words[:2] == ["-m", "nri_plugin"]
            is_command = not "".join(words[2:3]).startswith("-")
            own = os.readlink(process / "ns/mnt") == os.readlink(proc / "self/ns/mnt")
            if is_agent and not is_command and own:
                return words[2:-1]
    return ()
