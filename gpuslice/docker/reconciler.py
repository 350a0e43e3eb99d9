"""Takes the steps of recovery.py on this machine: books, makes, frees, removes and starts.

A pass decides from the files and from what Docker lists, never from an event, so that a missed
event or a killed host changes nothing. The methods block, and run in one thread. Files and bookings
change under the lock of the bookings. Docker is called without it.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, Protocol

from gpuslice.docker import containers, grants, recovery
from gpuslice.docker.grants import Grant, GrantError
from gpuslice.docker.machine import ERRORS, Machine
from gpuslice.docker.recovery import Action, Container, Facts, Step
from gpuslice.gpu.bookings import Booking, Bookings, started_ticks
from gpuslice.kube.log_lines import Line
from nri_plugin.policy import ledger
from nri_plugin.policy.ledger import Hold

_LOG: Final = logging.getLogger(__name__)
_CONTAINER: Final = "container"
_DONE: Final = {
    Step.START: "container started, which Docker could not",
    Step.REMOVE: "container removed, which was never started",
}


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
        self.containers: Sequence[Container] | None = None
        """What Docker listed last. None: it does not answer."""
        self.holds: Sequence[Hold] = ()
        """The shares of the running containers."""

    @property
    def troubled(self) -> bool:
        """Return whether a grant is not in place. Another look at the GPUs may help."""
        return any(self._said.values())

    def reconcile(self, *, first: bool = False) -> None:
        """Bring all grants up to date. first: before Docker answers. Specs that are there may then
        be of an earlier library or driver. Raises BookingsError."""
        with self._bookings.locked():
            idle = {*self._machine.stored(), *self._booked()} - self._booked(making=True)
        # Docker lists after the makers were looked for: one may create its container and then end.
        self._list(first=first)
        with self._bookings.locked():
            known = [*self._facts(idle, first=first)]
            later = [(facts, action) for facts in known for action in self._act(facts)]
        for facts, action in later:
            self._report(facts, self._change(action))
        self.holds = [hold for facts in known for hold in self._held(facts)]

    def is_unused(self) -> bool:
        """Return whether there is no grant. Called under the lock of the bookings."""
        return not self._machine.stored() and not self._booked()

    def _live(self) -> Sequence[Booking]:
        return self._bookings.live(lambda: None)

    def _booked(self, *, making: bool = False) -> AbstractSet[str]:
        """Return the keys of the containers with a booking. making: only of those whose
        `gpuslice run` is alive."""
        live = (each for each in self._live() if each.kind == _CONTAINER)
        return {
            each.key for each in live if not making or started_ticks(each.pid) == each.started_ticks
        }

    def _list(self, *, first: bool) -> None:
        self.containers, silence = None, ""
        if first:
            return
        try:
            self.containers = self._daemon.listed()
        except containers.ERRORS as error:
            silence = str(error)
        if silence and not self._silence:
            _LOG.warning(Line("Docker does not answer; nothing is freed", error=silence))
        elif not silence and self._silence != "":
            _LOG.info(Line("Docker answers", containers=len(self.containers or ())))
        self._silence = silence

    def _facts(self, idle: AbstractSet[str], *, first: bool) -> Iterator[Facts]:
        stored, booked = self._machine.stored(), self._booked()
        listed: dict[str, list[Container]] = defaultdict(list)
        for each in self.containers or ():
            listed[each.key].append(each)
        for key in sorted({*stored, *booked, *listed}):
            yield Facts(
                key,
                _readable(stored.get(key), listed[key]),
                changing=(key in idle) != (key in stored or key in booked),
                booked=key in booked,
                files=self._machine.has_files(key),
                spec=self._machine.has_spec(key) and not first,
                containers=None if self.containers is None else listed[key],
            )

    def _act(self, facts: Facts) -> Sequence[Action]:
        """Take the steps that change files and bookings. Return the others."""
        later: list[Action] = []
        problem = ""
        try:
            for action in recovery.actions(facts, str(self._machine.settings.run_dir)):
                if action.step is Step.LEAVE:
                    problem = action.why
                elif action.container:
                    later.append(action)
                elif action.step is Step.FREE:
                    return self._free(facts)
                elif facts.grant is not None:
                    self._take(action.step, facts.grant)
        except ERRORS as error:
            later, problem = [], str(error)
        if not later:
            self._report(facts, problem)
        return later

    def _free(self, facts: Facts) -> Sequence[Action]:
        self._machine.remove(facts.key)
        self._bookings.free(facts.key)
        self._said.pop(facts.key, None)
        _LOG.info(Line("grant freed", container=facts.name, key=facts.key))
        return ()

    def _take(self, step: Step, grant: Grant) -> None:
        if step is Step.BOOK:
            self._book(grant)
        else:
            self._machine.remake(grant)
            _LOG.info(Line("grant in place", container=grant.name, key=grant.key))

    def _book(self, grant: Grant) -> None:
        inventory = self._machine.inventory
        gpus = {gpu.uuid: gpu.most_bytes for gpu in inventory.gpus}
        booking = self._machine.booking(grant, os.getpid(), started=0)
        try:
            for share in grant.shares:
                if share.uuid not in gpus:
                    why = inventory.problem or "it is not on this machine, or has failed"
                    raise GrantError(f"{share.uuid}: {why}")
            self._bookings.book(booking, gpus, lambda: None)
        except ERRORS:
            self._machine.withdraw(grant.key)
            raise

    def _change(self, action: Action) -> str:
        """Change the action's container. Return the error's text, or ""."""
        try:
            if action.step is Step.START:
                self._daemon.start(action.container)
            else:
                self._daemon.remove(action.container, volumes=True)
        except containers.ERRORS as error:
            return str(error)
        _LOG.info(Line(_DONE[action.step], container_id=action.container))
        return ""

    def _report(self, facts: Facts, problem: str) -> None:
        """Log a problem when it changes, and write it down for `gpuslice ps`."""
        before = self._said.get(facts.key)
        if before == problem:
            return
        name = facts.name
        self._said[facts.key] = problem
        self._machine.note(facts.key, name, problem)
        if problem:
            _LOG.warning(Line(problem, container=name, key=facts.key))
        elif before:
            _LOG.info(Line("the container's problem is solved", container=name, key=facts.key))

    def _held(self, facts: Facts) -> Iterator[Hold]:
        for each in facts.containers or ():
            if each.running and facts.files and (grant := facts.grant):
                pod = grant.pod
                yield ledger.hold(each.id, facts.key, False, pod, each.name, grant.shares)


def _readable(stored: Grant | GrantError | None, listed: Sequence[Container]) -> Grant | None:
    """Return the stored grant, or that of a container's label, which Docker keeps too."""
    if isinstance(stored, Grant):
        return stored
    for each in listed:
        with suppress(GrantError):
            return grants.decode(each.key, each.grant)
    return None
