"""Connects a container to this process's terminal and signals until it ends, as docker run does.

Threads copy standard input and output and wait for the container's end. The main thread waits for
signals, and gets SIGCHLD when the container has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import termios
import tty
from collections.abc import Iterator
from typing import Any, Final

import docker
from docker.errors import APIError
from docker.utils.socket import frames_iter

from nri_plugin.host.descriptors import write
from shim import launch

_STDIN, _STDOUT = 0, 1
_CHUNK: Final = 1 << 16
_END: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_WAITED: Final = (*launch.FORWARDED, signal.SIGCHLD)
_NEVER: Final = "ctrl-@,ctrl-@,ctrl-@,ctrl-@"
"""Keys that detach. A container that runs on without a terminal is one of -d."""


def defer_signals() -> None:
    """Let signals wait until `take_signals` or `Attached.serve`. Threads that start meanwhile never
    get a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)


def take_signals() -> None:
    """Let the first signal that asks this process to end raise SystemExit."""

    def leave(number: int, _: object) -> None:
        defer_signals()
        raise SystemExit(128 + number)

    for each in _END:
        signal.signal(each, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)


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

    def serve(self) -> int | None:
        """Return the started container's exit status; None if the daemon does not tell it. Signals
        must be deferred."""
        ended: list[int | None] = []
        output = launch.start_thread(self._copy_output)
        launch.start_thread(self._wait, ended)
        if self._stdin:
            launch.start_thread(self._copy_input)
        self._resize()
        while not ended:
            number = signal.sigwait(_WAITED)
            with contextlib.suppress(APIError):  # the container has just ended
                if number == signal.SIGWINCH:
                    self._resize()
                elif number != signal.SIGCHLD:
                    self._client.kill(self._container, number)
        output.join()
        return ended[0]

    def _wait(self, ended: list[int | None]) -> None:
        status = None
        with contextlib.suppress(Exception):
            status = int(json.loads(self._waiting.content)["StatusCode"])
        ended.append(status)
        os.kill(os.getpid(), signal.SIGCHLD)

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
        with contextlib.suppress(OSError):
            frames = frames_iter(self._socket, self._tty)  # type: ignore[no-untyped-call]
            for target, data in frames:
                write(target, data)
