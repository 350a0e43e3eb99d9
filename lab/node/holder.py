"""The parent of a lab's mount and PID namespaces, which removes what the kernel does not.

The namespaces' first process reads a pipe that the lab's owner holds. When the owner ends or is
killed, the pipe closes and the first process exits. The kernel then kills all other processes of
the namespaces and drops their mounts. This program removes the cgroups and the directory. If this
program is killed, the kernel kills the first process.

    python -m lab.node.holder DIRECTORY CGROUP [OPTION OF UNSHARE...]
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from lab.node import cgroups

_UNSHARE: Final = (
    *("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--propagation=private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_FIRST: Final = """\
set -e
mkdir "$0/root"
# In a container this may be an overlay, on which no overlay can lie: use memory then.
case $(stat --file-system --format=%T "$0/root") in
overlay*) mount -t tmpfs gpuslice-lab "$0/root" ;;
esac
echo held
# The kernel reaps orphans of a parent that ignores SIGCHLD.
exec env --ignore-signal=CHLD cat
"""
"""The script of the first process. Its `cat` reads until the pipe closes."""


def main(directory: Path, cgroup: str, options: list[str]) -> int:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    done = subprocess.run([*_UNSHARE, *options, "--", "sh", "-c", _FIRST, str(directory)])
    cgroups.remove(cgroup, 10.0)
    shutil.rmtree(directory, ignore_errors=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
