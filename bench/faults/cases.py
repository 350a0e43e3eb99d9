"""The faults that agent.py injects, and the NRI requests at which it injects them."""

from __future__ import annotations

from enum import Enum


class Event(Enum):
    """The requests that the agent gets for a container's creation and start, in order."""

    CREATE = "CreateContainer"
    VALIDATE = "ValidateContainerAdjustment"
    START = "StartContainer"


class Strike(Enum):
    """A fault of the agent. Its value is the fault's word in the FILE that agent.py reads."""

    HANG = "hang"
    """The whole agent stands still until the file changes."""
    CRASH = "crash"
    """A signal kills the agent while the runtime waits for its answer."""
    KILL_AFTER = "kill-after"
    """The agent is killed after its answer was sent, before the next request."""
    CUT = "cut"
    """The agent's answer lacks the last bytes, and the connection is closed."""
    ERROR = "error"
    """The handler raises an unexpected exception."""
    SLOW = "slow"
    """The handler takes longer than any runtime's timeout, but the agent works on."""
