"""`python -m nri_plugin` without a sub-command: runs the service until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import uvloop

from gpuslice.gpu import driver_root
from gpuslice.kube.log_lines import Formatter, Line
from nri_plugin import agent, command_line
from nri_plugin.host.store import Store
from nri_plugin.policy.refusals import StoreError
from nri_plugin.readiness import Watchdog
from nri_plugin.settings import Settings

_LOG = logging.getLogger("nri_plugin")


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    chosen = command_line.from_arguments(arguments, environment)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(chosen.log_format))
    level = logging.DEBUG if chosen.verbose else logging.INFO
    logging.basicConfig(handlers=[handler], level=level)
    if os.geteuid() != 0:
        _LOG.error("the node agent needs root: it mounts the files that containers get")
        return 1
    # The default limit is 1024 open files. The agent and its arbiter open three per container.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _LOG.info(
        Line(
            "directories of the host",
            seen_at=chosen.host_root,
            containerd=chosen.on_host(chosen.containerd_state),
            nri=chosen.on_host(chosen.nri_socket),
            kubelet=chosen.on_host(chosen.kubelet_dir),
            cdi=",".join(chosen.on_host(d) for d in chosen.cdi_dirs if d.is_dir()),
            driver=chosen.driver_root or driver_root.locate(chosen.host_root) or "not found yet",
        )
    )
    # Any user in a container must be able to enter the store's directories, whatever our umask was.
    os.umask(0o022)
    try:
        library = Store(chosen.store_dir, chosen.library).own()
    except StoreError as error:
        _LOG.error(Line("this agent's own library is missing", error=error))
    else:
        _LOG.info(Line("this agent's own library", path=library))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(chosen))
    return 0


async def _serve(chosen: Settings) -> None:
    leaving = asyncio.Event()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    identity = f"pid={os.getpid()} host={socket.gethostname()} since={since}"
    watchdog = Watchdog(chosen.watchdog_s)
    work = agent.run(chosen, _announce, leaving, identity, watchdog.feed)
    serving = asyncio.create_task(work, name="serve")
    loop = asyncio.get_running_loop()

    def leave() -> None:
        """Stop after the open requests are answered. On a second signal, or after a timeout,
        cancel these requests."""
        if leaving.is_set():
            serving.cancel()
        leaving.set()
        loop.call_later(chosen.leave_s, serving.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    watchdog.close()
    _LOG.info("stopped")


def _announce(line: str) -> None:
    # The agent continues to serve after the reader of its stdout has closed the pipe.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
