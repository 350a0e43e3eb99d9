"""Brings all grants up to date: books, makes and frees them, removes and starts their containers.

A pass decides from the files and from what Docker lists, never from an event, so that a missed
event or a killed host changes nothing. A grant belongs to its container's existence.
Invariants: nothing is freed while Docker does not answer, while a process makes the container, or
while the container exists. A container is started only if Docker itself tried to and could not.

The methods block, and run in one thread. Files and bookings change under the lock of the bookings.
Docker is called without it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Protocol

from gpuslice.docker import containers, grants
from gpuslice.docker.containers import Container
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import ERRORS, Machine
from gpuslice.gpu.bookings import Booking, Bookings, BookingsError, Part, started_ticks
from gpuslice.kube.log_lines import Line
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold

_LOG: Final = logging.getLogger(__name__)
_CREATED: Final = "created"
_Change = Callable[[], None]
"""Starts or removes a container. Raises containers.ERRORS."""
LOST: Final = "its files are gone: its limit holds, but is not measured; restart the container"
UNREADABLE: Final = "the text of its grant is unreadable"


class Daemon(Protocol):
    """Docker, as containers.py is."""

    def listed(self) -> Sequence[Container]: ...
    def start(self, container: str, /) -> None: ...
    def remove(self, container: str, /, *, volumes: bool) -> None: ...


class Reconciler:
    def __init__(self, machine: Machine, bookings: Bookings, daemon: Daemon) -> None:
        self._machine, self._bookings, self._daemon = machine, bookings, daemon
        self._said: dict[str, str] = {}
        self._silence: str | None = None
        self.holds: Sequence[Hold] = ()
        """The shares of the running containers."""

    @property
    def troubled(self) -> bool:
        """Return whether a grant is not in place. Another look at the GPUs may help."""
        return any(self._said.values())

    def is_unused(self) -> bool:
        """Return whether there is no grant. Called under the lock of the bookings."""
        return not self._machine.stored() and not self._booked()

    def reconcile(self, *, first: bool = False) -> None:
        """Make a pass. first: before Docker answers. Specs that are there may then be of an earlier
        library or driver. Raises BookingsError."""
        with self._bookings.locked():
            idle = {*self._machine.stored(), *self._booked()} - self._booked(making=True)
        # Docker lists after the makers were looked for: one may create its container and then end.
        listed = None if first else self._list()
        problems, changes = dict[str, str](), list[tuple[str, _Change]]()
        with self._bookings.locked():
            stored, booked = self._machine.stored(), self._booked()
            known = {*stored, *booked, *(each.key for each in listed or ())}
            names, holds = dict[str, str](), list[Hold]()
            for key in sorted(known):
                ours = None if listed is None else [each for each in listed if each.key == key]
                grant = stored.get(key) or _of_label(ours or ())
                holds += self._held(grant, ours or ())
                if (key in idle) != (key in stored or key in booked):
                    continue  # a process makes or frees it
                names[key] = grant.name if grant else "unknown"
                try:
                    settled = self._settle(key, grant, key in booked, ours, first)
                    changes += [(key, change) for change in settled]
                except ERRORS as error:
                    problems[key] = str(error)
        for key, change in changes:
            try:
                change()
            except containers.ERRORS as error:
                problems[key] = str(error)
        for key, name in names.items():
            self._report(key, name, problems.get(key, ""))
        self._said = {key: text for key, text in self._said.items() if key in known}
        self.holds = holds

    def _booked(self, *, making: bool = False) -> AbstractSet[str]:
        """Return the keys of the containers with a booking. making: only of those whose
        `gpuslice run` is alive."""
        live = [each for each in self._bookings.live(lambda: None) if each.kind == "container"]
        return {
            each.key for each in live if not making or started_ticks(each.pid) == each.started_ticks
        }

    def _list(self) -> Sequence[Container] | None:
        listed, silence = None, ""
        try:
            listed = self._daemon.listed()
        except containers.ERRORS as error:
            silence = str(error)
        if silence and not self._silence:
            _LOG.warning(Line("Docker does not answer; nothing is freed", error=silence))
        elif not silence and self._silence != "":
            _LOG.info(Line("Docker answers", containers=len(listed or ())))
        self._silence = silence
        return listed

    def _settle(
        self,
        key: str,
        grant: Grant | None,
        booked: bool,
        known: Sequence[Container] | None,
        first: bool,
    ) -> Iterator[_Change]:
        """Bring one grant up to date, and yield the changes of its containers. grant: None if its
        text is unreadable. known: None if Docker does not answer. Raises ERRORS."""
        if known is None and grant is None:
            return
        if known is not None and not known:
            self._free(key)
            return
        if grant is None:
            raise BookingsError(UNREADABLE)
        if known and all((each.status, each.name) == (_CREATED, grant.name) for each in known):
            # The process that created it ended before its start, and nothing else starts it.
            for each in known:
                _LOG.info(Line("container is removed: it never started", container=each.name))
                yield partial(self._daemon.remove, each.id, volumes=True)
            return
        if not booked:
            self._book(grant)
        has_files = self._machine.has_files(key)
        if not has_files and any(each.running for each in known or ()):
            # New files would be a second limit, in addition to that of the running container.
            raise BookingsError(LOST)
        if first or not (has_files and self._machine.has_spec(key)):
            self._machine.remake(grant)
            _LOG.info(Line("grant in place", container=grant.name, key=key))
        for each in known or ():
            if each.restarts and each.status in (_CREATED, "exited") and self._lacked_grant(each):
                _LOG.info(Line("container is started, which Docker could not", container=each.name))
                yield partial(self._daemon.start, each.id)

    def _lacked_grant(self, container: Container) -> bool:
        """Return whether Docker could not start the container because the grant was not there. A
        container that ended, or that a user stopped, has no such error."""
        texts = grants.device_name(container.key), f"{self._machine.settings.run_dir}/"
        return any(text in container.error for text in texts)

    def _free(self, key: str) -> None:
        self._machine.remove(key)
        self._bookings.free(key)
        _LOG.info(Line("grant freed", key=key))

    def _book(self, grant: Grant) -> None:
        inventory, key = self._machine.inventory, grant.key
        capacity = {gpu.uuid: gpu.most_bytes for gpu in inventory.gpus}
        parts = [Part(gpu.uuid, gpu.limit_bytes, grant.core_percent) for gpu in grant.gpus]
        directory = str(self._machine.settings.run_dir / key)
        booking = Booking(key, grant.name, parts, os.getpid(), 0, "container", directory)
        try:
            for part in parts:
                if part.uuid not in capacity:
                    why = inventory.problem or "it is not on this machine, or has failed"
                    raise BookingsError(f"{part.uuid}: {why}")
            self._bookings.book(booking, capacity, lambda: None)
        except BookingsError:
            self._machine.withdraw(key)
            raise

    def _report(self, key: str, name: str, problem: str) -> None:
        """Log a problem when it changes, and write it down for `gpuslice ps`."""
        before = self._said.get(key)
        if before == problem:
            return
        self._said[key] = problem
        self._machine.note(key, name, problem)
        if problem:
            _LOG.warning(Line(problem, container=name, key=key))
        elif before:
            _LOG.info(Line("the container's problem is solved", container=name, key=key))

    def _held(self, grant: Grant | None, known: Sequence[Container]) -> Iterator[Hold]:
        if grant and self._machine.has_files(grant.key):
            for each in known:
                if each.running:
                    yield ledger.hold(each.id, grant.key, grant.pod, each.name, grant.shares)


def _of_label(known: Sequence[Container]) -> Grant | None:
    """Return the grant of a container's label, which Docker keeps too."""
    return next(filter(None, (grants.decode(each.key, each.grant) for each in known)), None)
