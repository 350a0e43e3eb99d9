"""`python -m tests.cluster.recorded` runs a scheduler that logs kube-scheduler's calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from scheduler.command_line import main
from scheduler.decisions.verbs import Verbs

Verb = Callable[[Verbs, bytes], bytes]


def _recorded(verb: Verb) -> Verb:
    def called(self: Verbs, body: bytes) -> bytes:
        sys.stderr.write(f"{verb.__name__} {body.decode()}\n")
        return verb(self, body)

    return called


if __name__ == "__main__":
    Verbs.filter = _recorded(Verbs.filter)  # type: ignore[assignment, method-assign]
    Verbs.prioritize = _recorded(Verbs.prioritize)  # type: ignore[assignment, method-assign]
    sys.exit(main(sys.argv[1:], os.environ))
