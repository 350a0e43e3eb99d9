"""The faults that agent.py injects, and the NRI requests at which it injects them."""

from __future__ import annotations

from enum import Enum


class Event(Enum):
    """The requests that the agent gets while a runtime creates and starts a container, in order."""

    CREATE = "CreateContainer"
    VALIDATE = "ValidateContainerAdjustment"
    START = "StartContainer"


class Strike(Enum):
    """The injected behaviour of the agent. The value is the word for it in agent.py's FILE."""

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
