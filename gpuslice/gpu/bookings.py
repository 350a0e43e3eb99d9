"""Records which programs and containers of this machine hold how much of which GPU.

A directory has a file per booking, for all users. Its flock serializes changes. A program's booking
lives while the process lives. A container's lives while Docker lists the container, or while the
process that makes it lives. Only a file's owner and root can remove it; others ignore the file of a
dead booking. Bookings prevent mistakes, not attacks: any user can write one. The node agent uses
none, because the scheduler books the GPUs of a cluster.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from gpuslice.contract import names, quantity

_LOG: Final = logging.getLogger(__name__)
_PROC: Final = Path("/proc")
_MODE: Final = 0o1777
_NEW: Final = "."
"""The prefix of the name of a file that is being written. A complete one has its key as name."""
_FILE_MAX: Final = 1 << 16
_OPEN: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_POLL_S: Final = 0.05
_POLLS: Final = 200
_HIDDEN: Final = -1

Kind = Literal["program", "container"]
Containers = Callable[[], AbstractSet[str] | None]
"""Returns the keys of the containers that Docker lists; None if Docker does not answer."""


class BookingsError(Exception):
    """The bookings cannot be read or changed. The text names the directory."""


class FullError(BookingsError):
    """A GPU has too little left. The text names the option, what is free, and what has the rest."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is booked of one GPU. core_percent: 0 if no compute was requested."""

    uuid: str
    memory_bytes: int
    core_percent: int


@dataclass(frozen=True, slots=True)
class Booking:
    """key: unique. parts: one for each GPU. pid: of the program, or of the process that makes the
    container. directory: has the grant's files."""

    key: str
    name: str
    parts: Sequence[Part]
    pid: int
    started_ticks: int
    kind: Kind
    directory: str

    @property
    def label(self) -> str:
        name = "".join(sign if sign.isprintable() else "?" for sign in self.name)
        return name if self.kind == "container" else f"pid {self.pid} ({name})"


def started_ticks(pid: int, proc: Path = _PROC) -> int | None:
    """Return when the process started, in clock ticks since the boot; None if it has ended, and -1
    if /proc hides it from this user."""
    try:
        values = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        with suppress(ProcessLookupError, OverflowError):
            with suppress(PermissionError):
                os.kill(pid, 0)
            return _HIDDEN
        return None
    # The first thread of a process can be a zombie while others run.
    is_zombie = values[0] == b"Z" and int(values[17]) < 2
    return None if is_zombie or values[0] == b"X" else int(values[19])


class Bookings:
    """The bookings in a directory, for one thread at a time. The directory is made if it is absent.
    Call the other methods inside `with locked()` only."""

    def __init__(
        self, directory: Path, proc: Path = _PROC, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._directory, self._proc, self._pause = directory, proc, pause
        self._descriptor = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes. Raises BookingsError if the lock is not free for ten seconds."""
        try:
            self._descriptor = self._lock()
        except OSError as error:
            raise BookingsError(f"{self._directory}: {error.strerror}") from error
        try:
            yield
        finally:
            os.close(self._descriptor)

    def live(self, containers: Containers) -> Sequence[Booking]:
        """Return the bookings that live, and remove the others. `containers` is called under the
        lock, so it must end within seconds. Without its answer all containers' bookings live."""
        bookings = list(self._read())
        ended = [
            each
            for each in bookings
            if started_ticks(each.pid, self._proc) not in (each.started_ticks, _HIDDEN)
        ]
        # Docker is asked after /proc, because a process may just have made its container and ended.
        listed = containers() if any(each.kind == "container" for each in ended) else None
        for each in ended:
            if each.kind == "program" or (listed is not None and each.key not in listed):
                bookings.remove(each)
                with suppress(PermissionError):
                    self.free(each.key)
        return bookings

    def book(self, booking: Booking, capacity: Mapping[str, int], containers: Containers) -> None:
        """Write the booking, in the place of one with its key. capacity: bytes by the GPU's UUID.
        Raises FullError if a GPU has too little left, and else BookingsError."""
        others = [each for each in self.live(containers) if each.key != booking.key]
        if problem := refusal(booking, others, capacity):
            raise FullError(problem)
        new, at = f"{_NEW}{booking.key}", self._descriptor
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        try:
            with open(os.open(new, flags, dir_fd=at), "w") as file:
                json.dump(asdict(booking), file)
                os.fchmod(file.fileno(), 0o644)
            os.rename(new, booking.key, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            raise BookingsError(f"{self._directory}/{booking.key}: {error.strerror}") from error

    def free(self, key: str) -> None:
        """Remove the booking, if it is there. Raises PermissionError if it is another user's."""
        with suppress(FileNotFoundError):
            os.unlink(key, dir_fd=self._descriptor)

    def _lock(self) -> int:
        for _ in range(_POLLS):
            with suppress(FileExistsError):
                os.mkdir(self._directory)
                os.chmod(self._directory, _MODE)
            descriptor = os.open(self._directory, os.O_DIRECTORY | _OPEN)
            if not (problem := self._problem(descriptor)):
                return descriptor
            os.close(descriptor)
            self._pause(_POLL_S)
        raise BookingsError(f"{self._directory}: {problem}")

    def _problem(self, directory: int) -> str:
        """Lock the directory. Return "", or why it cannot be used."""
        if (mode := stat.S_IMODE(os.fstat(directory).st_mode)) != _MODE:  # or it has just been made
            return f"invalid mode {mode:04o}: must be {_MODE:o}, because all users book there"
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"locked by another process for {_POLLS * _POLL_S:.0f} s"
        return ""

    def _read(self) -> Iterator[Booking]:
        def opener(name: str, _: int) -> int:
            return os.open(name, os.O_NONBLOCK | _OPEN, dir_fd=self._descriptor)

        for name in sorted(os.listdir(self._descriptor)):
            try:
                if name.startswith(_NEW):  # a process was killed before it renamed the file
                    os.unlink(name, dir_fd=self._descriptor)
                    continue
                with open(name, "rb", opener=opener) as file:
                    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        raise ValueError("not a regular file")
                    yield decode(name, file.read(_FILE_MAX))
            except (OSError, ValueError) as error:
                _LOG.warning("%s/%s is not a booking: %s", self._directory, name, error)


def of_machine(environment: Mapping[str, str]) -> Bookings:
    """Return the bookings of all users of this machine."""
    return Bookings(Path(environment.get(names.ENV_BOOKINGS, names.BOOKINGS_DIR)))


def decode(key: str, data: bytes) -> Booking:
    """Return the booking in a file's content. Unknown fields are ignored. Raises ValueError."""
    try:
        content = json.loads(data)
        parts = tuple(
            Part(str(each["uuid"]), int(each["memory_bytes"]), int(each["core_percent"]))
            for each in content["parts"]
        )
        if (kind := content["kind"]) not in get_args(Kind):
            raise ValueError(f"kind: invalid value {kind!r}")
        pid, ticks = int(content["pid"]), int(content["started_ticks"])
        name, directory = str(content["name"]), str(content["directory"])
        return Booking(key, name, parts, pid, ticks, kind, directory)
    except (LookupError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def refusal(booking: Booking, others: Sequence[Booking], capacity: Mapping[str, int]) -> str | None:
    """Return why the GPUs have too little left for the booking, or None if it fits."""
    for part in booking.parts:
        held = [(each.label, p) for each in others for p in each.parts if p.uuid == part.uuid]
        free_bytes = capacity.get(part.uuid, 0) - sum(p.memory_bytes for _, p in held)
        free_percent = 100 - sum(p.core_percent for _, p in held)
        size, free_size = f"{quantity.format_binary(part.memory_bytes)}B", _size(free_bytes)
        for option, wanted, free, shown in (
            ("--memory", part.memory_bytes, free_bytes, (size, free_size)),
            ("--core", part.core_percent, free_percent, (part.core_percent, max(free_percent, 0))),
        ):
            if wanted > max(free, 0):
                have = [
                    f"{label} has {_size(p.memory_bytes)}"
                    + (f" and {p.core_percent} %" if p.core_percent else "")
                    for label, p in held
                ]
                return (
                    f"{option}: invalid value {shown[0]}: must be at most {shown[1]}, what is free"
                    f" of {part.uuid}: {', '.join(have) or 'nothing is booked'}"
                )
    return None


def _size(amount: int) -> str:
    """Return the size in whole MiB, rounded down."""
    return f"{quantity.format_binary(max(amount, 0) >> 20 << 20)}B"
