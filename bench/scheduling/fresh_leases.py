"""`python -m scheduler`, but an agent's Lease counts as fresh for a day: renewals of five thousand
agents would load the API server more than the measured pods."""

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
