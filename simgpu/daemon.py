"""The daemon: the GPUs (gpus.py) behind sockets. Each GPU has one pathname socket (seat.py), and
the daemon has one control socket (control.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections import Counter

from simgpu.config import HostConfig
from simgpu.control import CONTROL_LINE_BYTES, Control
from simgpu.seat import Seat
from simgpu.state_dir import StateDir

log = logging.getLogger(__name__)


async def run(host: HostConfig, state_dir: StateDir) -> None:
    """Serve until SIGTERM, SIGINT or the control socket's stop. The caller locks `state_dir`."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    connections: Counter[int] = Counter()
    seats = {gpu.minor: Seat(host, gpu, connections) for gpu in host.gpus}
    state_dir.clear_sockets()
    async with contextlib.AsyncExitStack() as stack:
        for minor, seat in seats.items():
            path = state_dir.gpu_socket(minor)
            server = await asyncio.start_unix_server(seat.serve, path, backlog=1024)
            path.chmod(0o666)
            stack.callback(server.close)
            stack.push_async_callback(seat.close)
        control = Control(host, seats, stopping.set)
        # The control socket is bound last, so its clients find every GPU.
        before = os.umask(0o177)
        server = await asyncio.start_unix_server(
            control.serve, state_dir.control, limit=CONTROL_LINE_BYTES
        )
        os.umask(before)
        stack.callback(server.close)
        log.info("up: %d GPUs in %s", len(seats), state_dir.root)
        await stopping.wait()
    state_dir.clear_sockets()
    log.info("down")
