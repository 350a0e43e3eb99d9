"""The command `uninstall`: removes what gpuslice put on this node, except what containers use."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nri_plugin import command_line
from nri_plugin.claims.store import store_of
from nri_plugin.flags import absolute
from nri_plugin.host.lock import Lock
from nri_plugin.host.removal import Removal
from nri_plugin.policy.refusals import StoreError
from nri_plugin.settings import Settings

_DESCRIPTION: Final = """\
Removes gpuslice's files from this node, after its agent and distributor have exited. Running
containers keep their library, their limit and their files; no container is stopped. Give it the
settings of the agent, by flags or environment; those that are not listed here are accepted, and
have no effect.

Removes, under --run-dir, releases of the library that no container mounts and the files of grants
whose container does not exist; the copy at /usr/local/vgpu/libvgpu.so if it is gpuslice's; the CDI
spec that the agent generated; what it prepared for ResourceClaims. It prints each path, and why
others remain.
"""
_EPILOG: Final = """\
The command does not change containerd's configuration. NRI without a plugin does nothing.

The command may be repeated, and killed at any moment. `python -m scheduler uninstall` removes what
gpuslice wrote into the cluster. docs/install.md has the whole order.

examples:
  python -m nri_plugin uninstall --dry-run
  python -m nri_plugin uninstall --stay     # in a DaemonSet; removes later what is used now
"""
_USES: Final = ("--host-root", "--run-dir", "--cdi-dir", "--containerd-state", "--kubelet-dir")
_AGAIN_S: Final = 60.0
_RETRY_S: Final = 5.0


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    options = command_line.parse(parser(), arguments, environment)
    settings = command_line.settings_of(options, environment)
    lock = Lock(settings.run_dir, f"pid={os.getpid()} host={socket.gethostname()} uninstall")
    if not options.stay:
        problem = _uninstall(settings, lock, set(), options.dry_run)
        sys.stderr.write(problem and f"uninstall: {problem}\n")
        return int(bool(problem))
    _stay(settings, lock, options.done_file)
    return 0


def parser() -> argparse.ArgumentParser:
    known = command_line.command_parser(
        f"{command_line.PROG} uninstall", _DESCRIPTION, _EPILOG, _USES
    )
    known.add_argument(
        "--dry-run", action="store_true", help="change nothing; print what would be removed"
    )
    known.add_argument(
        "--stay",
        action="store_true",
        help="run until SIGTERM, and remove once a minute files that containers no longer use",
    )
    known.add_argument(
        "--done-file",
        type=absolute,
        default=Path("/tmp/done"),
        metavar="PATH",
        help="with --stay: created after the first pass, for a probe (default: /tmp/done)",
    )
    return known


def _stay(settings: Settings, lock: Lock, done_file: Path) -> None:
    printed, problem, stops = set[str](), "", {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # sigtimedwait below receives them
    while True:
        why = _uninstall(settings, lock, printed)
        if why and why != problem:
            sys.stderr.write(f"uninstall: {why}; retried\n")
        elif not why:
            done_file.touch()
        problem = why
        if signal.sigtimedwait(stops, _RETRY_S if why else _AGAIN_S) is not None:
            return


def _uninstall(settings: Settings, lock: Lock, printed: set[str], dry_run: bool = False) -> str:
    """Remove gpuslice's files. Return why files could not be removed, "" for success. printed: the
    lines that were printed before, and are not printed again."""

    def done(path: Path, what: str) -> None:
        line = f"{path}: {what}"
        if line not in printed:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        printed.add(line)

    try:
        if not dry_run and (why := lock.try_acquire()) is not None:
            return f"{why}: must have ended; delete the DaemonSet gpuslice-agent"
        Removal(settings, done, dry_run, store_of(settings).paths()).run()
    except (OSError, StoreError) as error:
        return str(error)
    finally:
        lock.release()
    return ""
