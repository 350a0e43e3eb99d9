"""The first process of the lab's own mount and PID namespaces, and the parent of all in it.

Its standard input is a pipe that the lab's owner holds. When the owner ends, by any signal, the
pipe closes; this process then kills all remaining processes, removes the lab's mounts, cgroups and
directory, and exits; the kernel then destroys both namespaces. So nothing of a lab remains.

    unshare --mount --propagation private --pid --fork --kill-child --mount-proc \\
        python -m lab.node.holder DIR CGROUP
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_EMPTYING_S: Final = 5.0


def _prepare(root: Path) -> None:
    """An overlay cannot lie on an overlay (a CI machine that is a container): use memory there."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(root)], text=True, capture_output=True
    )
    if "overlay" in kind.stdout:
        subprocess.run(["mount", "-t", "tmpfs", "gpuslice-lab", str(root)], check=True)


def _kill_all() -> None:
    """Kill every other process of this PID namespace; zombies vanish, as SIGCHLD is ignored."""
    deadline = time.monotonic() + _EMPTYING_S
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def _unmount(directory: Path) -> None:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    for point in sorted((p for p in points if p.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)


def cgroups(name: str) -> list[Path]:
    """Groups of that name, in every hierarchy."""
    tops = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir())]
    # Under cgroup v1 runc makes them below its own group, where the hierarchy gives it one.
    own = {line.split(":", 2)[2].lstrip("/") for line in _OWN.read_text().splitlines()}
    found = {top / inner / name for top in tops for inner in own | {""}}
    return [group for group in found if group.is_dir()]


def remove_cgroups(name: str) -> None:
    """Remove empty groups of that name; one that still holds a process stays."""
    for group in cgroups(name):
        inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
        for path in [*inner, group]:
            with contextlib.suppress(OSError):
                path.rmdir()


def main(directory: Path, cgroup: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    (directory / "root").mkdir(parents=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prepare(directory / "root")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()
    _kill_all()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _unmount(directory)
    remove_cgroups(cgroup)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
