"""Collects facts that the host's kernel and device files show, also from within the agent's pod.

There /sys and the mount table are the container's own; the host's are below its root directory as
seen there.
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
    """Return the driver's device nodes, and those without a link in /dev/char. root: the host's."""
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
    """Yield number and path of each of the driver's nodes."""
    for node in (*sorted(directory.glob("nvidia*")), *sorted(directory.glob("nvidia-caps*/*"))):
        with contextlib.suppress(OSError):
            status = node.stat()
            if stat.S_ISCHR(status.st_mode):
                number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
                yield number, f"/dev/{node.relative_to(directory)}"


def apparmor(root: Path) -> bool:
    """Whether it is enabled. root: the host's."""
    with contextlib.suppress(OSError):
        enabled = (root / "sys/module/apparmor/parameters/enabled").read_text()
        return enabled.strip() == _ENABLED
    return False


def propagates(mounts: str, path: Path) -> bool:
    """Whether a mount made at `path` reaches the host. mounts: the text of a container's
    /proc/self/mountinfo, in which later lines cover earlier ones."""
    lines = [line for line in mountinfo.parse(mounts) if path.is_relative_to(line.point)]
    return bool(lines) and lines[-1].shared


def agent_arguments(proc: Path = Path("/proc")) -> Sequence[str]:
    """Return the arguments of the agent that runs in this mount namespace, that is in this pod;
    empty if there is none."""
    for process in sorted(proc.glob("[0-9]*")):
        with contextlib.suppress(OSError):
            _, *words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_agent = words[:2] == ["-m", "nri_plugin"] and words[2:3] != [""]
            is_command = not "".join(words[2:3]).startswith("-")
            own = os.readlink(process / "ns/mnt") == os.readlink(proc / "self/ns/mnt")
            if is_agent and not is_command and own:
                return words[2:-1]
    return ()
