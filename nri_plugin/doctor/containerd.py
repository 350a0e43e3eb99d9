"""Identifies the program that listens at the NRI socket, its version and its configuration.

The doctor does not connect to the socket, because an idle client delays the registration of every
plugin by five seconds. The kernel's list of sockets identifies the listening process. The process's
program reports its version and configuration by read-only commands, run in the process's root.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import resolve
from nri_plugin.child import in_root
from nri_plugin.doctor.facts import Runtime, Socket

_COMMAND_S: Final = 15.0
_ACCEPTS: Final = 0x10000
"""Flag in /proc/net/unix of a socket that accepts connections."""
_NAMES: Final = {"crio": "cri-o"}
"""Name of a runtime's program -> the name that it reports in NRI, where these differ."""
_DEFAULT_CONFIG: Final = "/etc/containerd/config.toml"


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    argv: Sequence[str]

    @property
    def name(self) -> str:
        return os.path.basename(self.argv[0])


def inspect_socket(path: Path, root: Path = Path("/")) -> Socket:
    """Return whether the socket exists and has a listener. path, root: the socket and the host's
    root directory, at the paths at which this process sees them."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return Socket(False, False)
    except OSError as error:
        return Socket(False, False, f"{path}: {error.strerror}")
    if not stat.S_ISSOCK(status.st_mode):
        return Socket(True, False, f"{path} is not a socket")
    return Socket(True, inode(path, root) is not None)


def inspect_runtime(
    sockets: Sequence[Path], config: Path | None, root: Path = Path("/")
) -> Runtime:
    """Return the facts about the container runtime. sockets: NRI's, then containerd's own, because
    NRI may be off. config: the configuration file; None: the file that the runtime's command line
    names, or the default. root: as for `inspect_socket`."""
    process = next(filter(None, (listener(each, root) for each in sockets)), None)
    if process is None:
        file = str(config or _DEFAULT_CONFIG)
        problem = f"no process is seen that listens at {sockets[0]}"
        return _without_process(Path(file), root, problem)
    file = str(config or config_of(process.argv))
    known = Runtime(_NAMES.get(process.name, process.name), config_file=file)
    try:
        reported = run(process, "--version")
    except CommandError as error:
        return replace(known, problem=str(error))
    version = re.search(r"v?\d+\.\d+\.\d+[\w.+~-]*", reported)
    known = replace(known, version=version[0] if version else None)
    if process.name != "containerd":
        return replace(known, problem=f"the configuration of {process.name} is not examined")
    try:
        return replace(known, config=tomllib.loads(run(process, "-c", file, "config", "dump")))
    except (CommandError, tomllib.TOMLDecodeError) as error:
        return replace(known, problem=f"containerd config dump: {error}")


def _without_process(file: Path, root: Path, problem: str) -> Runtime:
    """Return only what the configuration file says, without containerd's defaults and imports."""
    known = Runtime(config_file=str(file), problem=problem)
    try:
        return replace(known, config=tomllib.loads((root / file.relative_to("/")).read_text()))
    except (OSError, ValueError):
        return known


def inode(socket: Path, root: Path = Path("/")) -> str | None:
    """Return the inode number of the listening socket with this path, from the kernel's lists.

    socket, root: as for `inspect_socket`. The lists' paths are relative to the host's root. Reads
    the list of our network namespace and, if visible, of the host's first process.
    """
    wanted = os.path.realpath(socket)
    for table in ("/proc/net/unix", "/proc/1/net/unix"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(errors="replace").splitlines()[1:]:
                number, path = _listening(line.split(maxsplit=7))
                if path.startswith("/") and _seen(root, path) == wanted:
                    return number
    return None


def _seen(root: Path, path: str) -> str:
    if root == Path("/"):
        return os.path.realpath(path)
    with contextlib.suppress(OSError):
        return str(resolve(root, path))
    return ""


def _listening(fields: Sequence[str]) -> tuple[str, str]:
    """Return a row's inode number and path; empty texts unless the socket listens at a path."""
    if len(fields) < 8 or not int(fields[3], 16) & _ACCEPTS:
        return "", ""
    return fields[6], fields[7]


def listener(socket: Path, root: Path = Path("/")) -> Process | None:
    number = inode(socket, root)
    if number is None:
        return None
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if f"socket:[{number}]" in _descriptors(pid):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                return Process(pid, argv.rstrip("\0").split("\0"))
    return None


def _descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def config_of(argv: Sequence[str]) -> str:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in {"-c", "--config", "-config"}:
            if equals:
                return value
            if at + 1 < len(argv):
                return argv[at + 1]
    return _DEFAULT_CONFIG


class CommandError(Exception):
    """The runtime's program did not answer. The text states the cause."""


def run(process: Process, *arguments: str) -> str:
    """Run the process's program in the process's root directory; return the standard output."""
    root, program = f"/proc/{process.pid}/root", f"/proc/{process.pid}/exe"
    command: Sequence[str] = [process.argv[0], *arguments]  # a multi-call binary needs its argv[0]
    executable: str | None = program
    try:
        if not os.path.samefile(root, "/"):
            command, executable = in_root(Path(root), [os.readlink(program), *arguments]), None
        done = subprocess.run(
            command,
            executable=executable,
            capture_output=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
    except OSError as error:
        raise CommandError(f"{process.name}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{process.name} does not answer in {_COMMAND_S:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise CommandError(lines[-1])
    return done.stdout
