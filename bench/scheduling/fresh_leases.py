"""Runs `python -m scheduler`, with a day until an agent's Lease expires. If five thousand agents
renewed Leases, the API server would have more work with them than with the measured pods."""

from __future__ import annotations

import functools
import os
import sys

from scheduler import service
from scheduler.command_line import main
from scheduler.decisions.state import State

if __name__ == "__main__":
    vars(service)["State"] = functools.partial(State, 86400.0)
    sys.exit(main(sys.argv[1:], os.environ))
