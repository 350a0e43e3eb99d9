"""The table of injections: the events at which each is made, and its name in the table's rows.

Pure. An event is one of the NRI events that the agent serves; a fault is injected when the runtime
sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Event(Enum):
    """Requests of a runtime to the agent, in order, while it creates and starts a container."""

    CREATE = "CreateContainer"
    VALIDATE = "ValidateContainerAdjustment"
    START = "StartContainer"


class Strike(Enum):
    """The injected behaviour of the agent. The value is the word in the fault's file."""

    HANG = "hang"
    """The whole process is stopped until the file changes."""
    CRASH = "crash"
    """A signal ends it while the runtime waits."""
    KILL_AFTER = "kill-after"
    """It is killed when its answer is sent, before the next event."""
    CUT = "cut"
    """Its answer lacks the last bytes, and the connection is closed."""
    ERROR = "error"
    """The handler raises an unexpected exception."""
    SLOW = "slow"
    """The handler takes longer than any runtime's timeout; the process continues."""


class Scene(Enum):
    """Faults outside the handler: in the set of running processes, or in the size of messages."""

    NEVER_CONNECTED = "never"
    KILLED_IDLE = "killed"
    AGENT_RESTARTED = "agent"
    CONTAINERD_RESTARTED = "containerd"
    LARGE_ANSWER = "answer"
    PIECES = "pieces"


@dataclass(frozen=True, slots=True)
class Injection:
    """One row: `strike` at each of `events`, each with its own container, then `scenes`."""

    title: str
    strike: Strike | None = None
    events: Sequence[Event] = tuple(Event)
    scenes: Sequence[Scene] = ()


INJECTIONS: Final[Mapping[str, Injection]] = {
    "never": Injection("never connected", scenes=(Scene.NEVER_CONNECTED,)),
    "hang": Injection("hang", Strike.HANG),
    "crash": Injection("crash in the handler", Strike.CRASH),
    "killed": Injection(
        "killed between events",
        Strike.KILL_AFTER,
        (Event.CREATE, Event.VALIDATE),
        (Scene.KILLED_IDLE,),
    ),
    "cut": Injection("connection cut mid-frame", Strike.CUT),
    "agent": Injection("agent restarted", scenes=(Scene.AGENT_RESTARTED,)),
    "containerd": Injection("containerd restarted", scenes=(Scene.CONTAINERD_RESTARTED,)),
    "error": Injection("error answer", Strike.ERROR),
    "slow": Injection("slow handler", Strike.SLOW),
}
"""By the names on the command line, in the order of the table."""

SIZES: Final[Mapping[str, Injection]] = {
    "answer": Injection("an answer of 3 MB", scenes=(Scene.LARGE_ANSWER,)),
    "pieces": Injection("Synchronize in pieces", scenes=(Scene.PIECES,)),
}
"""No faults, but inputs that break plugins with careless protocol code; in a table of its own."""

ROWS: Final[Mapping[str, Injection]] = {**INJECTIONS, **SIZES}
