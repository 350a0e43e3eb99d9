"""`gpuslice run --image`: books parts of GPUs, makes the grant, and runs one container with it.

A failure before the container runs undoes everything. If this process is killed, `gpuslice host`
does that: the booking is in this process's name until Docker lists the container.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import secrets
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from docker.errors import APIError, NotFound

from gpuslice.contract import names
from gpuslice.docker import (
    attached,
    containers,
    daemon,
    machine,
    options,
    program,
    refusals,
    serving,
)
from gpuslice.docker.attached import Attached
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import Machine, MachineError
from gpuslice.gpu import bookings
from gpuslice.gpu.bookings import Booking
from nri_plugin.host.entrypoint import UninspectableError
from nri_plugin.policy.model import Container, Mount
from nri_plugin.policy.plan import ContainerPlan
from shim import gpus, limits
from shim.limits import UsageError

_OURS, _DENIED, _ABSENT = 125, 126, 127
_OF_ERRNO: Final = {errno.ENOENT: _ABSENT, errno.EACCES: _DENIED}
"""The exit status for an error of the command. Otherwise 125."""
_ANSWER_S: Final = 600
"""Maximum wait for Docker. It copies an image's volumes before it answers."""
_ERRORS: Final = (
    *(UsageError, gpus.GpuError, MachineError, tarfile.TarError),
    *(*containers.ERRORS, *machine.ERRORS),
)


def main(arguments: Sequence[str], prog: str) -> int:
    """Return the container's exit status; 125, 126 or 127 if it did not run, as docker run."""
    try:
        asked = options.parse(arguments)
    except UsageError as error:
        return _failed(str(error))
    try:
        return _Run(asked).run()
    except (APIError, ValueError) as error:
        text = str(error.explanation if isinstance(error, APIError) else error)
        return _failed(refusals.of_docker(text, asked))
    except UninspectableError as error:
        return _failed(str(error), _OF_ERRNO.get(error.number or 0, _OURS))
    except _ERRORS as error:
        return _failed(str(error))


def _failed(text: str, status: int = _OURS) -> int:
    say(text)
    return status


def say(text: str) -> None:
    sys.stderr.write(f"gpuslice: {text}\n")


class _Run:
    """One container, from the checks of what was asked for to its end."""

    def __init__(self, asked: argparse.Namespace) -> None:
        if asked.interactive and asked.tty and not (asked.detach or os.isatty(0)):
            raise UsageError("--tty: must not be set: standard input is no terminal")
        self._asked = asked
        attached.defer_signals()  # the machine starts threads
        self._machine = Machine(os.environ)
        attached.take_signals()
        self._bookings = bookings.of_machine(os.environ)
        self._client = containers.connect(_ANSWER_S)
        self._way = daemon.find_way(self._client, machine.CDI)
        self._env = [_given(line) for line in asked.env]
        self._volumes = [
            refusals.volume(text, os.path.realpath, self._volume_options) for text in asked.volume
        ]
        places = self._machine.settings.run_dir, machine.STATE, machine.CDI
        secret = [os.path.realpath(each) for each in places]
        _raise(refusals.broken(self._volumes, self._env, self._ipc(asked.ipc), secret))
        self._image = daemon.image(self._client, asked.image, say)
        _raise(refusals.broken_by_image(asked.image, self._image.get("Volumes") or ()))
        self._key = secrets.token_hex(6)
        self._name = asked.name or f"gpuslice-{self._key}"

    def run(self) -> int:
        asked, client = self._asked, self._client
        asyncio.run(self._look())
        with self._undone_on_error():
            grant, plan = self._grant()
            container = self._create(grant, plan)
            driver = {mount.destination: mount.source for mount in plan.mounts}
            program.check(client, container, driver)
            connected = None if asked.detach else Attached(client, container, asked)
            attached.defer_signals()
            client.start(container)
        if connected is None:
            sys.stdout.write(f"{container}\n")
            return 0
        with connected.raw_terminal():
            status = connected.serve()
        if status is None:
            say(f"Docker does not answer; if {self._name} exists: gpuslice rm {self._name}")
            return _OURS
        if asked.rm:
            try:
                self._free()
            except machine.ERRORS as error:
                say(f"{self._name} is not freed until `{serving.HOST}` does it: {error}")
        else:
            say(f"{self._name} keeps its part of the GPU until: gpuslice rm {self._name}")
        return status

    def _volume_options(self, name: str) -> Mapping[str, str]:
        with suppress(NotFound):
            return self._client.inspect_volume(name)["Options"] or {}
        return {}

    def _ipc(self, mode: str) -> str:
        """Return the mode of the container that the mode joins."""
        while mode.startswith("container:"):
            joined = self._client.inspect_container(mode.partition(":")[2])
            mode = joined["HostConfig"]["IpcMode"]
        return mode

    async def _look(self) -> None:
        try:
            await self._machine.look()
        finally:
            await self._machine.close()

    def _grant(self) -> tuple[Grant, ContainerPlan]:
        """Book, and make the grant's files and spec."""
        asked, key, name = self._asked, self._key, self._name
        env = [*(self._image.get("Env") or ()), *self._env]
        variables = dict(line.partition("=")[::2] for line in env)
        parts = limits.parts(asked)
        capacity = {gpu.uuid: gpu.memory_bytes for gpu in parts}
        pid, directory = os.getpid(), str(self._machine.settings.run_dir / key)
        ticks = bookings.started_ticks(pid) or 0
        booking = Booking(key, name, [*parts.values()], pid, ticks, "container", directory)
        with self._bookings.locked():
            self._bookings.book(booking, capacity, containers.keys)
        grant = Grant(
            key,
            name,
            limits.granted(asked, parts),
            booking.parts[0].core_percent,
            variables.get(names.ENV_DRIVER_CAPABILITIES, ""),
        )
        mounts = [Mount(each.destination, each.source) for each in self._volumes]
        lines = [f"{key}={value}" for key, value in variables.items()]
        with self._bookings.locked():
            plan = self._machine.plan(grant, Container(key, name, lines, mounts))
            self._machine.make(grant, plan)
        return grant, plan

    def _create(self, grant: Grant, plan: ContainerPlan) -> str:
        """Create the container, and return its id."""
        asked = self._asked
        kept = "--detach" if asked.detach else "--restart" if asked.restart != "no" else ""
        serving.ensure(self._machine.settings.run_dir, self._bookings, kept)
        ours = [f"{key}={value}" for key, value in plan.env if key != names.ENV_VISIBLE_DEVICES]
        body = daemon.body(asked, self._volumes, [*self._env, *ours], grant, self._way)
        # Docker completes a request that is broken off.
        attached.defer_signals()
        created = self._client.create_container_from_config(body, self._name)  # type: ignore[no-untyped-call]
        attached.take_signals()
        for warning in created.get("Warnings") or ():
            say(warning)
        return str(created["Id"])

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            attached.defer_signals()
            try:
                containers.remove_all(self._key)
            except containers.ERRORS as error:
                say(f"{self._name} stays until `{serving.HOST}` removes it: {error}")
            else:
                self._free()
            raise

    def _free(self) -> None:
        with self._bookings.locked():
            self._machine.remove(self._key)
            self._bookings.free(self._key)


def _raise(broken: Iterator[str]) -> None:
    for text in broken:
        raise UsageError(text)


def _given(line: str) -> str:
    """Return the variable with its value: this process's if none is given."""
    return line if "=" in line or line not in os.environ else f"{line}={os.environ[line]}"
