"""`python -m scheduler`, but agents that do not renew their Leases are believed for a day: five
thousand of them would keep the API server busier than the pods that are measured."""

from __future__ import annotations

import functools
from typing import Final

from scheduler import service
from scheduler.command_line import application
from scheduler.state import State

_BELIEVED_S: Final = 86400.0

if __name__ == "__main__":
    vars(service)["State"] = functools.partial(State, _BELIEVED_S)
    application(prog_name="python -m bench.scheduling.believing")
