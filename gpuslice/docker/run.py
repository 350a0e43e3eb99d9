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
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from docker.errors import APIError

from gpuslice.contract import names
from gpuslice.contract.grant_file import Policy
from gpuslice.docker import containers, daemon, install, options, program, refusals
from gpuslice.docker.attached import Attached, InterruptedBySignal, Signals
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import ERRORS, Machine, Places, settings
from gpuslice.gpu import bookings
from nri_plugin.child import importing
from nri_plugin.host.entrypoint import UninspectableError
from nri_plugin.host.lock import Lock
from nri_plugin.policy.model import Container, Mount, Share
from nri_plugin.policy.plan import ContainerPlan
from shim import gpus, library, limits
from shim.limits import UsageError

_OURS, _DENIED, _ABSENT, _SIGNAL = 125, 126, 127, 128
_OF_ERRNO: Final = {errno.ENOENT: _ABSENT, errno.EACCES: _DENIED}
_OF_TEXT: Final = {
    "executable file not found": _ABSENT,
    "no such file or directory": _ABSENT,
    "permission denied": _DENIED,
    "is a directory": _DENIED,
}
"""The exit status for the command's error here, and for a text of Docker's. Otherwise 125."""
_WHOLE_CORE_PERCENT: Final = 100
_ANSWER_S: Final = 600
"""Maximum wait for Docker. It copies an image's volumes before it answers."""
_HOST: Final = "gpuslice host"
_WHILE_USED: Final = "--while-used"
_ERRORS: Final = (
    *(UsageError, gpus.GpuError, library.LibraryError, daemon.DaemonError, program.ImageError),
    *(UninspectableError, tarfile.TarError, ValueError, *containers.ERRORS, *ERRORS),
)


def main(arguments: Sequence[str], prog: str) -> int:
    """Return the container's exit status; 125, 126 or 127 if it did not run, as docker run."""
    try:
        return _Run(options.parse(arguments), Signals()).run()
    except _ERRORS as error:
        text = error.explanation if isinstance(error, APIError) else str(error)
        say(str(text))
        if isinstance(error, UninspectableError):
            return _OF_ERRNO.get(error.number or 0, _OURS)
        found = [status for each, status in _OF_TEXT.items() if each in str(text).lower()]
        return found[0] if found and isinstance(error, APIError) else _OURS
    except InterruptedBySignal as error:
        return _SIGNAL + error.number


def say(text: str) -> None:
    sys.stderr.write(f"gpuslice: {text}\n")


class _Run:
    """One container, from the checks of what was asked for to its end."""

    def __init__(self, asked: argparse.Namespace, signals: Signals) -> None:
        if os.geteuid() != 0:
            raise UsageError("run --image: invalid user: must be root, which mounts the grant")
        if asked.interactive and asked.tty and not (asked.detach or os.isatty(0)):
            raise UsageError("--tty: must not be set: standard input is no terminal")
        self._asked, self._signals = asked, signals
        self._machine = Machine(settings(os.environ), Places())
        self._bookings = bookings.of_machine(os.environ)
        self._env = [_given(line) for line in asked.env]
        self._volumes = [refusals.volume(text, os.path.realpath) for text in asked.volume]
        places, run_dir = self._machine.places, self._machine.settings.run_dir
        secret = [os.path.realpath(each) for each in (run_dir, places.state, places.cdi)]
        _raise(refusals.broken(self._volumes, self._env, asked.ipc, secret))
        try:
            self._client = containers.connect(_ANSWER_S)
        except containers.ERRORS as error:
            where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
            raise daemon.DaemonError(f"Docker does not answer at {where}: {error}") from error
        self._way = daemon.find_way(self._client, places.cdi)
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
            attached = None if asked.detach else Attached(client, container, asked)
            self._signals.interrupt = False
            client.start(container)
        if attached is None:
            sys.stdout.write(f"{container}\n")
            return 0
        with attached.raw_terminal():
            status = attached.serve(self._signals)
        if status is None:
            say(f"Docker does not answer; if {self._name} exists: gpuslice rm {self._name}")
            return _OURS
        if asked.rm:
            try:
                self._free()
            except ERRORS as error:
                say(f"{self._name} is not freed until `{_HOST}` does it: {error}")
        else:
            say(f"{self._name} keeps its part of the GPU until: gpuslice rm {self._name}")
        return status

    async def _look(self) -> None:
        try:
            await self._machine.look()
        finally:
            await self._machine.close()

    def _grant(self) -> tuple[Grant, ContainerPlan]:
        """Book, and make the grant's files and spec."""
        asked, machine = self._asked, self._machine
        env = [*(self._image.get("Env") or ()), *self._env]
        variables = dict(line.partition("=")[::2] for line in env)
        parts = limits.parts(asked)
        shares = [
            Share(
                gpu.uuid,
                gpu.minor,
                part.memory_bytes,
                part.core_percent or _WHOLE_CORE_PERCENT,
                uncapped=not part.core_percent,
            )
            for gpu, part in parts.items()
        ]
        capabilities = variables.get(names.ENV_DRIVER_CAPABILITIES, "")
        grant = Grant(self._key, self._name, shares, Policy(asked.core_policy), capabilities)
        started = bookings.started_ticks(os.getpid()) or 0
        capacity = {gpu.uuid: gpu.memory_bytes for gpu in parts}
        with self._bookings.locked():
            containers.claim(self._client)
            booking = machine.booking(grant, os.getpid(), started)
            self._bookings.book(booking, capacity, containers.keys)
        granted = limits.granted(asked, parts)
        grant = replace(
            grant,
            context_bytes={gpu.uuid: gpu.context_bytes for gpu in granted},
            code_bytes=granted[0].code_bytes,
            managed_free=granted[0].managed_free,
        )
        mounts = [Mount(each.destination, each.source) for each in self._volumes]
        lines = [f"{key}={value}" for key, value in variables.items()]
        with self._bookings.locked():
            plan = machine.plan(grant, Container(self._key, self._name, lines, mounts))
            machine.make(grant, plan)
        return grant, plan

    def _create(self, grant: Grant, plan: ContainerPlan) -> str:
        """Create the container, and return its id."""
        self._require_host()
        asked = self._asked
        ours = [f"{key}={value}" for key, value in plan.env if key != names.ENV_VISIBLE_DEVICES]
        body = daemon.body(asked, self._volumes, [*self._env, *ours], grant, self._way)
        create = self._client.create_container_from_config
        with self._signals.deferred():
            created = create(body, self._name)  # type: ignore[no-untyped-call]
        for warning in created.get("Warnings") or ():
            say(warning)
        return str(created["Id"])

    def _require_host(self) -> None:
        """Start `gpuslice host` if none runs. It looks for containers with a booking, so this comes
        after the booking. Raises UsageError where another program keeps the grants, or where the
        container needs the service."""
        lock = Lock(self._machine.settings.run_dir, f"{_HOST} is looked for")
        with self._bookings.locked():  # so that runs do not see each other
            other = lock.try_acquire()
            lock.release()
        if other is not None and _HOST not in other:
            raise UsageError(f"run --image: must not be set: {other}")
        serves = other is not None and _WHILE_USED not in other
        for option, value in (
            ("--detach", self._asked.detach),
            ("--restart", self._asked.restart != "no"),
        ):
            if value and not serves and not install.UNIT.exists():
                raise UsageError(
                    f"{option}: must not be set without the service that keeps limits while no"
                    f" `gpuslice run` waits: run `{_HOST} install`"
                )
        if other is None:
            # Its own session, so that no signal of our terminal reaches it.
            subprocess.Popen(
                (sys.executable, "-m", *_HOST.split(), _WHILE_USED),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=importing(os.environ),
                start_new_session=True,
            )

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._signals.interrupt = False
            try:
                containers.remove_all(self._key)
            except containers.ERRORS as error:
                say(f"{self._name} stays until `{_HOST}` removes it: {error}")
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
