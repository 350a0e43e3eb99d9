"""The agent over HTTP, in threads of its own: /healthz, /readyz and /metrics for probes and people.

The event loop does not wait for it, and it does not wait for the event loop: it answers also when
that one hangs, which is what /healthz is for. Whoever may connect learns what the metrics say, and
can change nothing. The address is tried again while another process has it; containers get their
share whether or not it is served.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_LATEST

from nri_plugin.logs import Line
from nri_plugin.metrics import Metrics
from nri_plugin.readiness import Readiness

_LOG: Final = logging.getLogger(__name__)

Address = Path | tuple[str, int]
"""A Unix socket's path, or host and port."""

_CLIENT_TIMEOUT_S: Final = 5.0
_CLIENTS_AT_ONCE: Final = 8
_RETRY_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"


class Endpoint:
    """Serves from `start` on, until the process ends or `close`."""

    def __init__(self, address: Address, readiness: Readiness, metrics: Metrics) -> None:
        self._address = address
        self._readiness = readiness
        self._metrics = metrics
        self._closed = threading.Event()
        self._server: _Server | None = None

    def start(self) -> None:
        threading.Thread(target=self._serve, name="endpoint", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        if self._server is not None:
            self._server.shutdown()

    @property
    def served(self) -> str | None:
        """Where it is served, with the port that was chosen where 0 was asked for; None: not."""
        return None if self._server is None else self._server.place

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body of a page."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, self._metrics.render()
        if path == "/healthz":
            hang = self._readiness.hang
            return _verdict([] if hang is None else [hang])
        if path == "/readyz":
            return _verdict(self._readiness.problems)
        text = "there are /healthz, /readyz and /metrics\n"
        return HTTPStatus.NOT_FOUND, _TEXT, text.encode()

    def _serve(self) -> None:
        said = False
        while not self._closed.is_set():
            try:
                server = _Server(self._address, self.answer)
            except OSError as error:
                if not said:
                    place = _written(self._address)
                    _LOG.error(Line("endpoint not served", address=place, error=error.strerror))
                said = True
                self._closed.wait(_RETRY_S)
                continue
            _LOG.info(Line("endpoint", address=server.place))
            with server:
                self._server = server
                if not self._closed.is_set():
                    server.serve_forever()
            return


def _verdict(problems: Sequence[str]) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, ("\n".join(problems or ["ok"]) + "\n").encode()


def _written(address: Address) -> str:
    if isinstance(address, Path):
        return f"unix:{address}"
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread per client, few of them; the rest is turned away rather than kept."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self, address: Address, answer: Callable[[str], tuple[HTTPStatus, str, bytes]]
    ) -> None:
        self.answer = answer
        self._places = threading.BoundedSemaphore(_CLIENTS_AT_ONCE)
        self._wanted = address
        if isinstance(address, Path):
            self.address_family = socket.AF_UNIX
        elif ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(cast(Any, address), _Page)
        bound = self.socket.getsockname()
        self.place = _written(address if isinstance(address, Path) else bound[:2])

    def server_bind(self) -> None:
        if not isinstance(self._wanted, Path):
            super().server_bind()
            return
        # A file that a dead agent left is replaced; so is a living one's, whose turn ends.
        aside = self._wanted.with_name(f".{self._wanted.name}.{os.getpid()}")
        self._wanted.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        self.socket.bind(str(aside))
        aside.chmod(0o600)
        aside.rename(self._wanted)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOG.debug(Line("endpoint client failed"), exc_info=True)


class _Page(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    server_version = "gpuslice"
    sys_version = ""

    def do_GET(self) -> None:
        status, kind, body = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe comes every few seconds."""
