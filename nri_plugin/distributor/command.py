"""The command `distribute`: flags, the loop, the log; and `--check`, for the readiness probe."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from contract import names
from contract.library_file import LibraryFileError
from kube.log_lines import Format, Formatter, Line
from nri_plugin.distributor import publication
from nri_plugin.distributor.changes import Changes
from nri_plugin.distributor.publication import Origin, Publication, Superseded
from nri_plugin.policy.refusals import StoreError

_LOG: Final = logging.getLogger("nri_plugin.distributor")

_DESCRIPTION: Final = """\
Publishes libvgpu.so on this node, for the containers that the agent creates from now on. Running
containers keep the library that they started with. The agent is not restarted.

Writes, below the parent of --store-dir, and restores what other programs change there:
  store/SHA256/libvgpu.so  the release
  store/current            the SHA-256 of the release that the agent mounts into new containers
  libvgpu.so               a copy for Koordinator and HAMi; gpuslice's containers do not map it
"""
_EPILOG: Final = """\
The agent mounts its own release instead, and logs why, where the current one is built for another
machine or implements another contract (see `readelf -p .note.gpuslice libvgpu.so`). It also removes
releases that no container uses.

With --source hami the library is HAMi's. It cannot read gpuslice's grants, so it is only copied to
libvgpu.so, for pods that Koordinator or HAMi serve; the agent mounts its own release.

Of two distributors the one that started last is in charge, and the other one changes nothing. A
distributor runs until SIGTERM; an error (full disk, read-only file system) is logged and retried.

examples:
  python -m nri_plugin distribute --library /opt/gpuslice/libvgpu.so
  python -m nri_plugin distribute --library /opt/gpuslice/libvgpu.so --check; echo $?
  rm /usr/local/vgpu/store/current    # without a distributor: the agents' own library again
"""
_VERIFY_EVERY_S: Final = 60.0
_RETRY_S: Final = 5.0
_SETTLE_S: Final = 0.5
"""Pause after a change: another program that rewrites the files in a loop costs two copies a
second."""


def main(arguments: Sequence[str]) -> int:
    known = parser()
    given = known.parse_args(arguments)
    try:
        data = publication.read(given.library, Origin(given.source))
    except LibraryFileError as error:
        known.error(f"--library: invalid value {str(given.library)!r}: {error}")
    since = datetime.now(UTC).isoformat(timespec="microseconds")
    identity = f"pid={os.getpid()} host={socket.gethostname()} since={since}"
    published = Publication(data, Origin(given.source), given.store_dir, identity)
    if given.check:
        lacking = published.lacks()
        sys.stderr.writelines(f"{each}\n" for each in lacking)
        return int(bool(lacking))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(given.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    # The containers' users must be able to enter directories under the store, whatever our umask.
    os.umask(0o022)
    _run(published)
    return 0


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(
        prog="python -m nri_plugin distribute",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known.add_argument(
        "--library", type=Path, required=True, metavar="PATH", help="the library to publish"
    )
    known.add_argument(
        "--source",
        choices=tuple(Origin),
        default=Origin.GPUSLICE,
        help="which project built the library (default: gpuslice)",
    )
    known.add_argument(
        "--store-dir",
        type=Path,
        default=Path(names.HOST_STORE_DIR),
        metavar="PATH",
        help=f"as the agent's --store-dir (default: {names.HOST_STORE_DIR})",
    )
    known.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit with 1 and the reasons unless all files are as published",
    )
    known.add_argument(
        "--log-format",
        type=Format,
        choices=tuple(Format),
        default=Format.LOGFMT,
        help="format of the log (default: logfmt)",
    )
    return known


def _run(published: Publication) -> None:
    """Restore the files after each change, and once a minute, until SIGTERM."""
    changes, logged = Changes(), None
    while not changes.stopped:
        # Before the files are verified, so that no later change is missed.
        changes.watch(published.directories)
        wait_s, problem = _VERIFY_EVERY_S, ""
        try:
            for lacking in published.restore():
                _LOG.info(Line("files restored", reason=lacking))
                wait_s = 0.0  # a directory may be new, and is watched from the next round on
        except StoreError as error:
            wait_s, problem = _RETRY_S, f"not published, retried: {error}"
        except Superseded as error:
            problem = f"another distributor started later and is in charge: {error}"
        if problem != logged:
            if problem:
                _LOG.error(Line(problem))
            else:
                _LOG.info(Line("library published", sha256=published.sha256))
        logged = problem
        changes.wait(wait_s)
        changes.pause(_SETTLE_S)
    _LOG.info("stopped")
