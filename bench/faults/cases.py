"""The faults, as a table: where each strikes, and what it is called in the table's rows.

Pure. An event is one of NRI's that the agent serves; a fault strikes the agent when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Event(Enum):
    """What a runtime asks the agent, in this order, while it makes and starts a container."""

    CREATE = "CreateContainer"
    VALIDATE = "ValidateContainerAdjustment"
    START = "StartContainer"


class Strike(Enum):
    """What the agent does when it is struck. The value is the word in the fault's file."""

    HANG = "hang"
    """The whole process stands still, until the file says otherwise."""
    CRASH = "crash"
    """It dies of a signal while the runtime waits."""
    KILL_AFTER = "kill-after"
    """It dies when its answer is sent, before the next event."""
    CUT = "cut"
    """Its answer lacks the last bytes, and the connection is closed."""
    ERROR = "error"
    """The handler raises what nobody expects."""
    SLOW = "slow"
    """The handler takes longer than any runtime waits; the process goes on."""


class Scene(Enum):
    """Faults that are not in the handler, but in what runs, or in how much of it."""

    NEVER_CONNECTED = "never"
    KILLED_IDLE = "killed"
    AGENT_RESTARTED = "agent"
    CONTAINERD_RESTARTED = "containerd"
    LARGE_ANSWER = "answer"
    PIECES = "pieces"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: `strike` at each of `events`, each with a container of its own, then `scenes`."""

    title: str
    strike: Strike | None = None
    events: Sequence[Event] = tuple(Event)
    scenes: Sequence[Scene] = ()


FAULTS: Final[Mapping[str, Fault]] = {
    "never": Fault("never connected", scenes=(Scene.NEVER_CONNECTED,)),
    "hang": Fault("hang", Strike.HANG),
    "crash": Fault("crash in the handler", Strike.CRASH),
    "killed": Fault(
        "killed between events",
        Strike.KILL_AFTER,
        (Event.CREATE, Event.VALIDATE),
        (Scene.KILLED_IDLE,),
    ),
    "cut": Fault("connection cut mid-frame", Strike.CUT),
    "agent": Fault("agent restarted", scenes=(Scene.AGENT_RESTARTED,)),
    "containerd": Fault("containerd restarted", scenes=(Scene.CONTAINERD_RESTARTED,)),
    "error": Fault("error answer", Strike.ERROR),
    "slow": Fault("slow handler", Strike.SLOW),
}
"""By the names that the command line takes, in the order of the table."""

SIZES: Final[Mapping[str, Fault]] = {
    "answer": Fault("an answer of 3 MB", scenes=(Scene.LARGE_ANSWER,)),
    "pieces": Fault("Synchronize in pieces", scenes=(Scene.PIECES,)),
}
"""No faults, but what breaks a plugin that is careless with the protocol; a table of its own."""

ROWS: Final[Mapping[str, Fault]] = {**FAULTS, **SIZES}
