"""This machine's GPUs, library and grants: makes the files and the CDI spec of a grant.

`gpuslice run --image` and `gpuslice host` use it. They hold the lock of the bookings meanwhile.
    /var/lib/gpuslice/docker/KEY.json           the grant's text, from which the rest is made again
    RUN/KEY/                                    the grant's files (nri_plugin/host/files.py)
    /var/run/cdi/gpuslice.io-grant-KEY.json     the CDI spec; it is written last
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.docker import grants
from gpuslice.docker.grants import Grant
from gpuslice.gpu.bookings import BookingsError
from nri_plugin import command_line
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
from nri_plugin.threads import Worker
from shim import library
from shim.library import LibraryError

STATE: Final = Path(names.DOCKER_STATE_DIR)
CDI: Final = Path("/var/run/cdi")
"""A directory in which Docker looks for specs. A reboot empties it."""
_MODE: Final = 0o644
ERRORS: Final = (Refused, FilesError, StoreError, BookingsError, OSError)
"""The errors of a grant that cannot be booked or made."""


class MachineError(Exception):
    """This machine, its Docker or the image cannot have a grant. The text says what to change."""


class Machine:
    """The machine, with the node agent's settings and this installation's library. Call `look`
    before the other methods, and `close` at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises MachineError."""
        if os.geteuid() != 0:
            raise MachineError("invalid user: must be root, which mounts the grants")
        try:
            arguments = ("--library", str(library.find()))
        except LibraryError as error:
            raise MachineError(str(error)) from error
        self.settings = command_line.from_arguments(arguments, environment)
        self.inventory = Inventory(self.settings.environment, record=Record(self.settings.run_dir))
        numbers = random.SystemRandom()
        self.files = RunDirectory(self.settings.run_dir, lambda: numbers.randrange(1, 1 << 64))
        store = Store(self.settings.store_dir, self.settings.library)
        self._node = Node(self.settings, self.inventory, store, Worker("machine"))

    async def look(self) -> Sequence[Gpu]:
        """Query the GPUs, and generate CDI specs for those that have none. Return the GPUs that
        work. Raises Refused if the driver does not answer."""
        await self.inventory.refresh()
        if self.inventory.problem:
            raise refused(Reason.GPUS_UNKNOWN, problem=self.inventory.problem)
        specs, _ = self._node.inspect_host()
        if missing := self._node.to_generate(specs):
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
        """Make what is absent or outdated of a grant. Complete files stay, because a running
        container may have mounted them. Raises OSError, FilesError and StoreError."""
        _write(STATE / f"{grant.key}.json", grants.encode(grant))
        if not self.has_files(grant.key):
            first = grant.gpus[0]
            files = replace(
                self.files, code_bytes=first.code_bytes, managed_free=first.managed_free
            )
            files.apply(plan, {gpu.uuid: gpu.context_bytes for gpu in grant.gpus})
        found = {place: os.stat(source) for place, source in plan.files.items()}
        identities = {place: f"{each.st_dev}:{each.st_ino}" for place, each in found.items()}
        _write(CDI / grants.spec_file(grant.key), grants.spec(plan, identities))

    def remake(self, grant: Grant) -> None:
        """Make a stored grant again, for example after a restart of the machine. Its container was
        checked when it was created. Raises as `plan` and `make` do."""
        minors = {gpu.uuid: gpu.minor for gpu in self.inventory.seen}
        gpus = [replace(each, minor=minors.get(each.uuid, each.minor)) for each in grant.gpus]
        current = replace(grant, gpus=gpus)
        env = [f"{names.ENV_DRIVER_CAPABILITIES}={grant.capabilities}"] * bool(grant.capabilities)
        self.make(current, self.plan(current, Container(grant.key, grant.name, env)))

    def has_files(self, key: str) -> bool:
        return key in self.files.grants([key])

    def has_spec(self, key: str) -> bool:
        """Return whether a container can be started with the grant."""
        return (STATE / f"{key}.json").exists() and (CDI / grants.spec_file(key)).exists()

    def note(self, key: str, name: str, problem: str) -> None:
        """Write down for `gpuslice ps` why a container is without its grant. "": it is not."""
        file = STATE / f"{key}{names.SUFFIX_PROBLEM}"
        if problem:
            _write(file, f"container {name}: {problem}")
        else:
            file.unlink(missing_ok=True)

    def withdraw(self, key: str) -> None:
        """Remove the spec, so that Docker refuses to start the grant's container."""
        (CDI / grants.spec_file(key)).unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Remove all that `make` made. Idempotent. Raises OSError and FilesError."""
        self.withdraw(key)
        self.files.remove(key)
        self.note(key, "", "")
        (STATE / f"{key}.json").unlink(missing_ok=True)

    def stored(self) -> Mapping[str, Grant | None]:
        """Return the grants on disk by key; None for an unreadable one."""
        texts = STATE.glob("*.json")
        return {file.stem: grants.decode(file.stem, file.read_text()) for file in texts}


def _write(path: Path, text: str) -> None:
    releases.replace(path, text.encode(), _MODE)
