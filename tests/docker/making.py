"""A program that makes a container with a grant, in the steps of `gpuslice run`.

    python -m tests.docker.making KEY MEMORY CORE RESTART UNTIL IMAGE -- COMMAND...

It prints the name of each step that it has taken: booked, made, created, started. After UNTIL it
waits to be killed, or ends if that is "end". It serves the tests of what happens after a kill.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import docker

from gpuslice.contract import grant_file, names
from gpuslice.docker import grants
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import Machine
from gpuslice.gpu import bookings
from gpuslice.gpu.bookings import Booking, Part
from nri_plugin.policy.model import Container, Gpu
from tests.docker.grants import by_cdi, by_runtime


def main(arguments: Sequence[str]) -> None:
    key, memory, core, restart, until, image, _, *command = arguments
    for step in _steps(key, int(memory), int(core), restart, image, command):
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        while step == until:
            time.sleep(1)


def _steps(
    key: str, memory_bytes: int, core: int, restart: str, image: str, command: Sequence[str]
) -> Iterator[str]:
    machine = Machine(os.environ)
    gpu = asyncio.run(_first(machine))
    limited = grant_file.Gpu(gpu.uuid, memory_bytes, core or 100, gpu.minor)
    grant, pid = Grant(key, key, (limited,), core), os.getpid()
    plan = machine.plan(grant, Container(key, key))
    booked = bookings.of_machine(os.environ)
    with booked.locked():
        parts, ticks = [Part(gpu.uuid, memory_bytes, core)], bookings.started_ticks(pid) or 0
        booking = Booking(key, key, parts, pid, ticks, "container", f"/run/gpuslice/{key}")
        booked.book(booking, {gpu.uuid: gpu.most_bytes}, lambda: None)
        yield "booked"
        machine.make(grant, plan)
    yield "made"
    client = docker.DockerClient.from_env(version="auto")
    request = by_cdi if "DiscoveredDevices" in client.info() else by_runtime
    container = client.containers.create(
        image,
        [*command],
        name=key,
        labels={names.LABEL_KEY: key, names.LABEL_GRANT: grants.encode(grant)},
        restart_policy=cast(Any, {"Name": restart}),
        network_mode="none",
        **request(grants.device_name(key)),
    )
    yield "created"
    container.start()
    yield "started"


async def _first(machine: Machine) -> Gpu:
    gpus = await machine.look()
    await machine.close()
    return gpus[0]


if __name__ == "__main__":
    main(sys.argv[1:])
