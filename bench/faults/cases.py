"""The faults that agent.py injects, and the NRI requests at which it does. Pure."""

from __future__ import annotations

from enum import Enum


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
