"""Connects a container to this process's terminal and signals until it ends, as docker run does.

Threads copy standard input and output and wait for the container's end. The main thread only reads
a pipe, in which it finds the numbers of signals, and 0 when the container has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import struct
import termios
import tty
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import docker
from docker.errors import APIError

from shim import launch

_STDIN, _STDOUT = 0, 1
_CHUNK: Final = 1 << 16
_FRAME: Final = struct.Struct(">BxxxL")
_END: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_ENDED: Final = 0
_NEVER: Final = "ctrl-@,ctrl-@,ctrl-@,ctrl-@"
"""Keys that detach. A container that runs on without a terminal is one of -d."""


class InterruptedBySignal(BaseException):
    """A signal asks this process to end before the container runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Signals of this process. While `interrupt` is set the first that asks it to end raises
    InterruptedBySignal; later ones can be read from the pipe."""

    def __init__(self) -> None:
        self.interrupt = True
        self._late = 0
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.write_end, False)
        signal.set_wakeup_fd(self.write_end, warn_on_full_buffer=False)
        for number in launch.FORWARDED:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise at the end of the block: Docker completes a request that is broken off."""
        self.interrupt = False
        yield
        self.interrupt = True
        if self._late:
            self._handle(self._late, None)

    def _handle(self, number: int, _: object) -> None:
        if number not in _END:
            return
        if self.interrupt:
            self.interrupt = False
            raise InterruptedBySignal(number)
        self._late = number


class Attached:
    """A created container, attached before it starts. asked: its options."""

    def __init__(self, client: docker.APIClient, container: str, asked: argparse.Namespace) -> None:
        self._client, self._container = client, container
        self._stdin, self._tty = asked.interactive, asked.tty
        # Docker answers with headers at once, and with the rest at the container's end.
        self._waiting = client.post(
            f"{client.base_url}/v{client.api_version}/containers/{container}/wait",
            params={"condition": "removed" if asked.rm else "next-exit"},
            stream=True,
            timeout=None,
        )
        wanted = {"stdin": self._stdin, "stdout": 1, "stderr": 1, "stream": 1, "detachKeys": _NEVER}
        stream: Any = client.attach_socket(container, wanted)
        self._socket = socket.socket(fileno=os.dup(stream.fileno()))
        self._socket.settimeout(None)

    @contextlib.contextmanager
    def raw_terminal(self) -> Iterator[None]:
        """Pass keys on as they are, if the container has a terminal and this process too."""
        if not (self._tty and self._stdin and os.isatty(_STDIN)):
            yield
            return
        before = termios.tcgetattr(_STDIN)
        try:
            tty.setraw(_STDIN)
            yield
        finally:
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)

    def serve(self, signals: Signals) -> int | None:
        """Return the started container's exit status; None if the daemon does not tell it."""
        status: list[int] = []
        output = launch.start_thread(self._copy_output)
        launch.start_thread(self._wait, status, signals.write_end)
        if self._stdin:
            launch.start_thread(self._copy_input)
        self._resize()
        while (number := os.read(signals.read_end, 1)[0]) != _ENDED:
            with contextlib.suppress(APIError):  # the container has just ended
                if number == signal.SIGWINCH:
                    self._resize()
                elif number in launch.FORWARDED:
                    self._client.kill(self._container, number)
        output.join()
        return status[0] if status else None

    def _wait(self, status: list[int], done: int) -> None:
        with contextlib.suppress(Exception):
            status.append(int(json.loads(self._waiting.content)["StatusCode"]))
        os.write(done, bytes([_ENDED]))

    def _resize(self) -> None:
        if self._tty and os.isatty(_STDOUT):
            columns, lines = os.get_terminal_size(_STDOUT)
            with contextlib.suppress(APIError):
                self._client.resize(self._container, height=lines, width=columns)

    def _copy_input(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(_STDIN, _CHUNK):
                self._socket.sendall(data)
            self._socket.shutdown(socket.SHUT_WR)

    def _copy_output(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as stream:
            if self._tty:
                while data := stream.read1(_CHUNK):
                    _write(_STDOUT, data)
            else:
                _demultiplex(stream)


def _demultiplex(stream: BinaryIO) -> None:
    """Copy frames: one byte of the target's descriptor, the size, the data."""
    while len(header := stream.read(_FRAME.size)) == _FRAME.size:
        target, size = _FRAME.unpack(header)
        _write(target, stream.read(size))


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]
