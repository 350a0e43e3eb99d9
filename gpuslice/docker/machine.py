"""This machine's GPUs, library and grants: makes the files and the CDI spec of a grant.

`gpuslice run --image` and `gpuslice host` use it. They hold the lock of the bookings meanwhile.
    /var/lib/gpuslice/docker/KEY.json           the grant's text, from which the rest is made again
    RUN/KEY/                                    the grant's files (nri_plugin/host/files.py)
    /var/run/cdi/gpuslice.io-grant-KEY.json     the CDI spec; it is written last
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.docker import grants
from gpuslice.docker.grants import Grant, GrantError
from gpuslice.gpu.bookings import Booking, BookingsError, Part
from nri_plugin import command_line
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.gpu.record import Record
from nri_plugin.host import releases
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.node import Node
from nri_plugin.host.store import Store
from nri_plugin.policy import plan as plans
from nri_plugin.policy.checks import Request
from nri_plugin.policy.model import Container, Gpu
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import FilesError, Reason, Refused, StoreError, refused
from nri_plugin.settings import Settings
from nri_plugin.threads import Worker
from shim import library

_MODE: Final = 0o644
ERRORS: Final = (Refused, FilesError, StoreError, GrantError, BookingsError, OSError)
"""The errors of a grant that cannot be booked or made."""


def settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings of this machine: the node agent's, with this installation's library.
    Raises LibraryError."""
    return command_line.from_arguments(("--library", str(library.find())), environment)


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of this machine. cdi: where the daemon looks for specs."""

    state: Path = Path(names.DOCKER_STATE_DIR)
    cdi: Path = Path("/var/run/cdi")


class Machine:
    """The machine. Call `look` before the other methods, and `close` at the end."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self.settings, self.places = settings, places
        self.inventory = Inventory(settings.environment, record=Record(settings.run_dir))
        self.contexts = Contexts(settings.environment, self.inventory)
        numbers = random.SystemRandom()
        self.files = RunDirectory(settings.run_dir, lambda: numbers.randrange(1, 1 << 64))
        store = Store(settings.store_dir, settings.library)
        self._node = Node(settings, self.inventory, store, Worker("machine"))

    async def look(self) -> Sequence[Gpu]:
        """Query the GPUs, and generate CDI specs for those that have none. Return the GPUs that
        work. Raises Refused if the driver does not answer."""
        await self.inventory.refresh()
        if self.inventory.problem:
            raise refused(Reason.GPUS_UNKNOWN, problem=self.inventory.problem)
        specs, _ = self._node.inspect_host()
        missing = self._node.to_generate(specs)
        if missing:
            await self._node.generate_specs(missing)
        return self.inventory.gpus

    async def close(self) -> None:
        await self.inventory.close()

    def plan(self, grant: Grant, container: Container) -> ContainerPlan:
        """Return what the container gets. container: what its user gave it. Raises Refused."""
        specs, paths = self._node.inspect_host()
        request = Request(grant.pod, container, grant.claim, grant.key, specs, paths)
        return plans.with_share(request)

    def make(self, grant: Grant, plan: ContainerPlan) -> None:
        """Make the grant's files and its CDI spec. Raises OSError, FilesError and StoreError, and
        then leaves nothing behind."""
        try:
            _write(self.places.state / f"{grant.key}.json", grants.encode(grant))
            self._apply(grant, plan)
            self._write_spec(plan, grant.key)
        except BaseException:
            self.remove(grant.key)
            raise

    def remake(self, grant: Grant) -> None:
        """Make again what is absent or outdated of a stored grant, for example after a restart of
        the machine. Complete files stay, because a running container may have mounted them. Its
        container was checked when it was created. Raises as `plan` and `make` do, but removes
        nothing then."""
        key, minors = grant.key, {gpu.uuid: gpu.minor for gpu in self.inventory.seen}
        shares = [replace(s, minor=minors.get(s.uuid, s.minor)) for s in grant.shares]
        current = replace(grant, shares=tuple(shares))
        env = [f"NVIDIA_DRIVER_CAPABILITIES={grant.capabilities}"] if grant.capabilities else []
        plan = self.plan(current, Container(key, grant.name, env))
        _write(self.places.state / f"{key}.json", grants.encode(current))
        if not self.has_files(key):
            self._apply(current, plan)
        self._write_spec(plan, key)

    def _apply(self, grant: Grant, plan: ContainerPlan) -> None:
        code_bytes, free = grant.code_bytes, grant.managed_free
        files = replace(self.files, code_bytes=code_bytes, managed_free=free)
        files.apply(plan, grant.context_bytes)

    def _write_spec(self, plan: ContainerPlan, key: str) -> None:
        found = {place: os.stat(source) for place, source in plan.files.items()}
        identities = {place: f"{each.st_dev}:{each.st_ino}" for place, each in found.items()}
        _write(self.places.cdi / grants.spec_file(key), grants.spec(plan, identities))

    def has_files(self, key: str) -> bool:
        return key in self.files.grants([key])

    def has_spec(self, key: str) -> bool:
        """Return whether a container can be started with the grant."""
        text, spec = self.places.state / f"{key}.json", self.places.cdi / grants.spec_file(key)
        return text.exists() and spec.exists()

    def booking(self, grant: Grant, pid: int, started: int) -> Booking:
        """Return the grant's booking. pid, started: the process that makes the container."""
        parts = [
            Part(each.uuid, each.memory_bytes, 0 if each.uncapped else each.core_percent)
            for each in grant.shares
        ]
        directory = str(self.settings.run_dir / grant.key)
        return Booking(grant.key, grant.name, parts, pid, started, "container", directory)

    def note(self, key: str, name: str, problem: str) -> None:
        """Write down for `gpuslice ps` why a container is without its grant. "": it is not."""
        file = self.places.state / f"{key}{names.SUFFIX_PROBLEM}"
        if problem:
            _write(file, f"container {name}: {problem}")
        else:
            file.unlink(missing_ok=True)

    def withdraw(self, key: str) -> None:
        """Remove the spec, so that Docker refuses to start the grant's container."""
        (self.places.cdi / grants.spec_file(key)).unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Remove all that `make` made. Idempotent. Raises OSError and FilesError."""
        self.withdraw(key)
        self.files.remove(key)
        self.note(key, "", "")
        (self.places.state / f"{key}.json").unlink(missing_ok=True)

    def stored(self) -> Mapping[str, Grant | GrantError]:
        """Return the grants on disk by key, with the error of each that is unreadable."""
        return dict(self._stored())

    def _stored(self) -> Iterator[tuple[str, Grant | GrantError]]:
        for file in sorted(self.places.state.glob("*.json")):
            with suppress(FileNotFoundError):
                text = file.read_text()
                try:
                    yield file.stem, grants.decode(file.stem, text)
                except GrantError as error:
                    yield file.stem, error


def _write(path: Path, text: str) -> None:
    releases.replace(path, text.encode(), _MODE)
