"""Everything that can be set, once: built in __main__ from the command line, read by the rest.

No other module reads arguments or environment.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contract import names

_EPILOG: Final = """\
The agent serves until it is told to stop (SIGTERM), and reconnects when containerd restarts. Its
one line on standard output, "ready: ...", says that containers are adjusted from now on; its log
goes to standard error.

In a pod it needs: root, hostPID, the host's directories under the same paths as on the host, the
run directory and containerd's state with mount propagation (Bidirectional, HostToContainer).

example:
  python -m nri_plugin --library /opt/gpuslice/libvgpu.so
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The node agent's settings; paths are the host's."""

    nri_socket: Path
    """containerd's NRI socket; it is made anew whenever containerd starts."""
    index: str
    """Two digits: plugins run in this order, and later ones see what earlier ones did."""
    run_dir: Path
    """Holds a small tmpfs per container with a grant."""
    store_dir: Path
    """Holds the library, by content hash; containers mount it from there."""
    library: Path
    """The library to publish; where it is missing, containers with a grant are refused."""
    cdi_dirs: Sequence[Path]
    """Directories of CDI specs, from the lowest priority to the highest."""
    containerd_state: Path
    """containerd's state directory, in which bundles and root file systems are found."""
    environment: Mapping[str, str]
    """Environment of the child that asks NVML."""
    strict: bool = False
    """Mount forwarders over the driver's libraries, for programs that no preload reaches."""
    verbose: bool = False
    """Log what is routine, too."""

    inventory_deadline_s: float = 10.0
    """How long NVML may take; it takes seconds where persistence mode is off."""
    inventory_min_interval_s: float = 5.0
    """How often NVML is asked at most, however many unknown cards are named."""
    context_deadline_s: float = 10.0
    """How long a look at what a context takes may last; the agent waits for it at its start."""
    context_min_interval_s: float = 30.0
    """How often such a look is made at most, while a card has not told."""
    work_deadline_s: float = 1.2
    """How long files or a look at a container may take; below 75 % of NRI's default of 2 s."""
    first_retry_s: float = 0.2
    last_retry_s: float = 10.0
    """Pauses between attempts to reach containerd, doubled and jittered between these."""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nri_plugin",
        description="gpuslice's node agent: brings containers their share of a GPU, with its"
        " limit, through containerd's NRI.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(flag: str, default: str | None, what: str) -> None:
        parser.add_argument(
            flag,
            type=_absolute,
            default=default,
            required=default is None,
            metavar="PATH",
            help=what if default is None else f"{what} (default: {default})",
        )

    add("--library", None, "libvgpu.so of this release, published into the store")
    add("--nri-socket", "/var/run/nri/nri.sock", "containerd's NRI socket")
    add("--run-dir", names.HOST_RUN_DIR, "where containers' grants and regions live")
    add("--store-dir", names.HOST_STORE_DIR, "where the library is kept, by content hash")
    add("--containerd-state", "/run/containerd", "containerd's state directory")
    parser.add_argument(
        "--cdi-dir",
        action="append",
        type=_absolute,
        metavar="DIR",
        help="directory of CDI specs, repeatable, the last outranks the others"
        " (default: /etc/cdi and /var/run/cdi)",
    )
    parser.add_argument(
        "--index",
        type=_index,
        default="50",
        help="two digits, place among NRI plugins (default: 50)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="mount a forwarder over each driver library, so that programs of musl, and libraries"
        " opened by dlmopen, meet the limit too; needs forwarder.so beside --library",
    )
    parser.add_argument("--verbose", action="store_true", help="log what is routine, too")
    return parser


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Exits, as argparse does, where the arguments are wrong or ask for help."""
    given = parser().parse_args(arguments)
    return Settings(
        nri_socket=given.nri_socket,
        index=given.index,
        run_dir=given.run_dir,
        store_dir=given.store_dir,
        library=given.library,
        cdi_dirs=tuple(given.cdi_dir or (Path("/etc/cdi"), Path("/var/run/cdi"))),
        containerd_state=given.containerd_state,
        environment=dict(environment),
        strict=given.strict,
        verbose=given.verbose,
    )


def _absolute(text: str) -> Path:
    """Mount sources and what containerd tells back are compared as text: absolute and plain."""
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise argparse.ArgumentTypeError(f"{text!r} is not an absolute path without '..'")
    return path


def _index(text: str) -> str:
    if not re.fullmatch("[0-9]{2}", text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected two digits from 00 to 99")
    return text
