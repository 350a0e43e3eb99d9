"""The command `distribute`: keeps a copy of one library on this node, for other projects' pods.

Koordinator and HAMi mount /usr/local/vgpu/libvgpu.so into the pods that they serve. No container
of gpuslice uses this file. The distributor replaces it by a rename, because running programs map
the old file. Where another program overwrites the copy, the distributor restores it. Where the
copy cannot be written, the distributor logs that once and tries again later.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpuslice.contract import library_file, names
from gpuslice.contract.library_file import LibraryFileError
from gpuslice.gpu.driver_root import HostView
from gpuslice.kube.log_lines import Format, Formatter, Line
from nri_plugin.host import releases
from nri_plugin.host.descriptors import version
from nri_plugin.policy.refusals import StoreError

_LOG: Final = logging.getLogger(__name__)

_DESCRIPTION: Final = f"""\
Keeps a copy of libvgpu.so at {names.HOST_LIBRARY} of this node, for pods that Koordinator or HAMi
serve. Containers with a share by gpuslice mount the agent's own library, and need no distributor.
"""
_EPILOG: Final = """\
With --source hami the library is HAMi's. A distributor runs until SIGTERM. What another program
writes over the copy is replaced within seconds; programs that map a file keep it. Where the copy
cannot be written (a read-only /usr), that is logged once, and tried again.

examples:
  python -m nri_plugin distribute --library /opt/gpuslice/libvgpu.so
"""
_AGAIN_S: Final = 5.0
"""The interval in which the copy's file status is checked."""
_RETRY_S: Final = 60.0
_NO_COPY: Final = (
    "no copy of the library for Koordinator's and HAMi's pods; gpuslice's own pods need none"
)


class Origin(StrEnum):
    """Which project built the library: the values of --source."""

    GPUSLICE = "gpuslice"
    HAMI = "hami"


def main(arguments: Sequence[str]) -> int:
    known = parser()
    options = known.parse_args(arguments)
    try:
        data = read(options.library, Origin(options.source))
    except LibraryFileError as error:
        known.error(f"--library: invalid value {str(options.library)!r}: {error}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(options.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    # Any user in a container must be able to enter the copy's directory, whatever our umask was.
    os.umask(0o022)
    # The loop below waits for these signals. A handler that sets an Event could deadlock, because
    # it may interrupt the main thread while that thread holds the Event's lock.
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    copy = Copy(data, Path(names.HOST_LIBRARY), HostView(options.host_root))
    while signal.sigtimedwait(stops, copy.restore()) is None:
        pass
    _LOG.info("stopped")
    return 0


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(
        prog="python -m nri_plugin distribute",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known.add_argument(
        "--library", type=Path, required=True, metavar="PATH", help="the library to copy"
    )
    known.add_argument(
        "--source",
        choices=tuple(Origin),
        default=Origin.GPUSLICE,
        help="which project built the library (default: gpuslice)",
    )
    known.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="PATH",
        help="directory at which the host's root directory is seen (default: /)",
    )
    known.add_argument(
        "--log-format",
        type=Format,
        choices=tuple(Format),
        default=Format.LOGFMT,
        help="format of the log (default: logfmt)",
    )
    return known


def read(path: Path, origin: Origin) -> bytes:
    """Return the library's bytes. Raises LibraryFileError unless it is a library of `origin`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LibraryFileError(f"must be a readable file: {error.strerror}") from error
    library_file.check(data, os.uname().machine, contract=None)
    if origin is Origin.GPUSLICE and library_file.parse(data).contract is None:
        raise LibraryFileError("must be gpuslice's library; for HAMi's set --source hami")
    return data


@dataclass
class Copy:
    """The copy of the library. path: the copy's path on the host."""

    data: bytes
    path: Path
    view: HostView
    _verified: object = None
    _problem: str = ""

    def restore(self) -> float:
        """Write the copy if it is missing or differs. Return the seconds until the next check."""
        seen = self.view.seen(self.path)
        try:
            if self._verified is None or version(seen) != self._verified:
                if not releases.holds(seen, self.data):
                    releases.replace(seen, self.data)
                    _LOG.info(Line("copy of the library written", path=self.path))
                self._verified = version(seen)
        except StoreError as error:
            self._verified = None
            if str(error) != self._problem:
                self._problem = str(error)
                _LOG.warning(Line(_NO_COPY, path=self.path, error=error))
            return _RETRY_S
        self._problem = ""
        return _AGAIN_S
