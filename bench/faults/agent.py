"""The node agent with an injected fault: `python -m bench.faults.agent FILE [--naive] FLAGS`.

It runs the agent's program with its FLAGS, and wraps the handler of requests and the socket. FILE
has the fault and the request, such as `hang CreateContainer`, and may change at any time. If FILE
is empty or absent, no fault is injected. --naive is the control, an agent without measures against
its own failure. It has no validation, failure policy or deadline, and ignores containers' devices.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.faults.cases import Event, Strike
from nri_plugin import __main__ as agent
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri import answers, connection
from nri_plugin.protocol import session, session_events
from nri_plugin.protocol.session_events import SERVED_EVENTS, EventMask

_SERVED: Final[Mapping[type[session_events.Request], Event]] = {
    session_events.CreateContainer: Event.CREATE,
    session_events.Validate: Event.VALIDATE,
    session_events.StartContainer: Event.START,
}
_LOST_BYTES: Final = 3
"""How many bytes a cut answer lacks. A frame's payload is longer, so the payload is cut."""

_serve: Final = connection.serve


class InjectedFault(RuntimeError):
    """The unexpected exception of the fault ERROR."""


class Handler:
    """The agent's handler. It injects the planned fault, or lets `Socket` do so at the answer."""

    def __init__(self, handler: answers.Handler, file: Path, naive: bool) -> None:
        self._handler = handler
        self._file = file
        self._naive = naive
        self.strike_answer: Strike | None = None
        """The fault to inject when the next answer is written."""

    def __call__(self, request: session_events.Request) -> answers.Answer[answers.Reply]:
        event = _SERVED.get(type(request))
        return self._handler(request) if event is None else self._struck(event, request)

    async def _struck(self, event: Event, request: session_events.Request) -> answers.Reply:
        await self._strike(event)
        if self._naive and isinstance(request, session_events.CreateContainer):
            request = replace(request, container=_without_what_it_has(request.container))
        answer = self._handler(request)
        return await answer if inspect.iscoroutine(answer) else answer  # type: ignore[return-value]

    def _planned(self, event: Event) -> Strike | None:
        words = self._file.read_text().split() if self._file.exists() else []
        return Strike(words[0]) if words[1:] == [event.value] else None

    async def _strike(self, event: Event) -> None:
        match self._planned(event):
            case Strike.HANG:
                while self._planned(event) is Strike.HANG:
                    time.sleep(0.02)  # noqa: ASYNC251 - the loop must block
            case Strike.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case Strike.ERROR:
                raise InjectedFault(f"a fault at {event.value}")
            case Strike.SLOW:
                await asyncio.sleep(3600.0)
            case strike:
                self.strike_answer = strike


class Socket(socket.socket):
    """The connection's socket. It can cut an answer short, or kill the agent after an answer."""

    def __init__(self, whole: socket.socket, handler: Handler) -> None:
        super().__init__(fileno=whole.detach())
        self.setblocking(False)
        self._handler = handler

    def send(self, data: Any, flags: int = 0) -> int:
        # The kernel accepts the whole answer at once, because the socket's buffer is larger.
        strike, self._handler.strike_answer = self._handler.strike_answer, None
        if strike is Strike.CUT:
            super().send(data[:-_LOST_BYTES], flags)
            self.shutdown(socket.SHUT_RDWR)
            return len(data)
        sent = super().send(data, flags)
        if strike is Strike.KILL_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return sent


def _without_what_it_has(container: nri.Container) -> nri.Container:
    copy = nri.Container()
    copy.CopyFrom(container)
    del copy.mounts[:]
    del copy.linux.devices[:]
    del copy.cdi_devices[:]
    return copy


def main() -> int:
    program, file, *flags = sys.argv
    naive = flags[:1] == ["--naive"]

    async def serve(unix: socket.socket, handler: Any, **options: Any) -> None:
        struck = Handler(handler, Path(file), naive)
        if naive:
            options["wanted_events"] = SERVED_EVENTS & ~EventMask.VALIDATE_CONTAINER_ADJUSTMENT
        await _serve(Socket(unix, struck), struck, **options)

    connection.serve = serve
    # uvloop would not call `Socket.send`, which injects the faults of answers.
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    if naive:
        session.FAILURE_POLICY = None  # type: ignore[misc, assignment]
        answers.BUDGET_SHARE = 1000.0  # type: ignore[misc] # no deadline
    sys.argv = [program, *flags[naive:]]
    return agent.main()


if __name__ == "__main__":
    sys.exit(main())
