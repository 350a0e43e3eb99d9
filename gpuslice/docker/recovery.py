"""What `gpuslice host` must do for each grant, from what is stored, booked and listed by Docker.

Pure. A grant belongs to its container's existence. The result for one grant is independent of the
others: whether it fits is decided when it is booked.
Invariants: nothing is freed while Docker does not answer, while a process makes the container, or
while the container exists. A container is started only if Docker itself tried to and could not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gpuslice.docker.grants import Grant, device_name

_RUNNING: Final = ("running", "paused")
_CREATED: Final = "created"
_ENDED: Final = ("exited", _CREATED)
LOST: Final = "its files are gone: its limit holds, but is not measured; restart the container"


class Step(Enum):
    """A step for a grant. REMOVE, START: of `Action.container`."""

    REMOVE = auto()
    FREE = auto()
    """Remove the grant's spec, files, text and booking."""
    BOOK = auto()
    MAKE = auto()
    """Make those of the grant's files and its spec that are absent."""
    START = auto()
    LEAVE = auto()
    """Nothing, and `Action.why` says why."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container with our label. grant: the label's text. status, error: Docker's State.
    restarts: it has a restart policy."""

    id: str
    name: str
    key: str
    grant: str
    status: str
    restarts: bool = False
    error: str = ""

    @property
    def running(self) -> bool:
        return self.status in _RUNNING


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one key. grant: None if its text is unreadable or absent. changing: a
    process made or freed it while Docker was asked, or may still. files, spec: present.
    containers: those with the key; None if Docker does not answer."""

    key: str
    grant: Grant | None
    changing: bool
    booked: bool
    files: bool
    spec: bool
    containers: Sequence[Container] | None

    @property
    def name(self) -> str:
        return self.grant.name if self.grant else "unknown"


@dataclass(frozen=True, slots=True)
class Action:
    step: Step
    container: str = ""
    why: str = ""


def actions(facts: Facts, run_dir: str) -> Sequence[Action]:
    """Return the steps for one grant. If one fails, the later ones must not be taken."""
    known = facts.containers or ()
    if facts.changing or (facts.containers is None and facts.grant is None):
        return ()
    if facts.containers is not None and not known:
        return (Action(Step.FREE),)
    if known and all(each.status == _CREATED for each in known):
        # The process that created them ended before their start, and nothing else starts them.
        return [Action(Step.REMOVE, each.id) for each in known]
    if facts.grant is None:
        return (Action(Step.LEAVE, why="the text of its grant is unreadable"),)
    steps = [] if facts.booked else [Action(Step.BOOK)]
    if not facts.files and any(each.running for each in known):
        # New files would be a second limit, in addition to that of the running container.
        return *steps, Action(Step.LEAVE, why=LOST)
    if not (facts.files and facts.spec):
        steps.append(Action(Step.MAKE))
    failed = (each for each in known if each.restarts and names_grant(each, run_dir))
    return *steps, *(Action(Step.START, each.id) for each in failed if each.status in _ENDED)


def names_grant(container: Container, run_dir: str) -> bool:
    """Return whether Docker could not start the container because the grant was not there. A
    container that ended, or that a user stopped, has no such error."""
    return any(text in container.error for text in (device_name(container.key), f"{run_dir}/"))
