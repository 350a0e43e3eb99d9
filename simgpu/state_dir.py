"""The daemon's directory D: its files, its lock, its cleanup.

    D/pid            the daemon's pid; unlocked if that daemon has exited
    D/log            the daemon's log
    D/gpus/N.sock    GPU N: a process that may connect has the GPU
    D/control.sock   JSON lines, for root or the owner: status, faults, stop
    D/cdi/           nvidia.json, the CDI spec
    D/dev/           the driver's device nodes, if root started the daemon

Uses only files and locks. Independent of GPUs and protocols.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A unix socket's address (sun_path) holds 108 bytes, including the final NUL.
_SOCKET_PATH_BYTES: Final = 107
# struct flock of 64-bit Linux: type, whence, start, length, pid. F_GETLK queries a lock's holder
# without locking, so a query never blocks a starting daemon.
_FLOCK: Final = struct.Struct("@hhqqi4x")


class StateDirError(Exception):
    """The directory cannot be used. The message names the reason."""


@dataclass(frozen=True, slots=True)
class StateDir:
    """One directory D. The CDI spec contains `root`, so `root` is absolute and has no symlinks."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> StateDir:
        state_dir = cls(directory.resolve())
        longest = state_dir.gpu_socket(255)
        if len(os.fsencode(longest)) > _SOCKET_PATH_BYTES:
            raise StateDirError(
                f"{state_dir.root}: too long; the sockets in it would exceed the "
                f"{_SOCKET_PATH_BYTES} bytes that the kernel allows in a socket's path"
            )
        return state_dir

    @property
    def pid_file(self) -> Path:
        return self.root / "pid"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def gpus(self) -> Path:
        return self.root / "gpus"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def cdi_spec(self) -> Path:
        return self.root / "cdi" / "nvidia.json"

    @property
    def device_nodes(self) -> Path:
        return self.root / "dev"

    def gpu_socket(self, minor: int) -> Path:
        return self.gpus / f"{minor}.sock"

    def create(self) -> None:
        try:
            for directory in (self.root, self.gpus, self.cdi_spec.parent):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateDirError(f"{error.filename}: {error.strerror}") from error

    def lock(self) -> int:
        """Make this process D's daemon until it ends. The caller keeps the descriptor open."""
        descriptor = os.open(self.pid_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StateDirError(f"{self.root}: a daemon runs here already") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def daemon_pid(self) -> int | None:
        """Return the pid of D's running daemon, or None. An exited daemon's pid file is ignored."""
        try:
            descriptor = os.open(self.pid_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        finally:
            os.close(descriptor)
        return None if kind == fcntl.F_UNLCK else pid

    def clear_sockets(self) -> None:
        """Remove the sockets that an earlier daemon left."""
        for path in (*self.gpus.glob("*.sock"), self.control):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the daemon's files, and D itself if it is then empty."""
        if not self.root.is_dir():
            return
        self.clear_sockets()
        for path in (self.cdi_spec, self.log, self.pid_file, *self.device_nodes.glob("nvidia*")):
            path.unlink(missing_ok=True)
        for directory in (self.gpus, self.cdi_spec.parent, self.device_nodes, self.root):
            with contextlib.suppress(OSError):
                directory.rmdir()
