"""Random trees of queues with three levels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.queues.kai import UNLIMITED, Q


def random_tree(drawn: random.Random, fits: bool) -> Sequence[Q]:
    """Return queues on three levels, parents first. fits: every parent's quota is what its children
    have, or more."""
    queues: list[Q] = []

    def add(name: str, parent: str, depth: int) -> float:
        """Add a queue and those below. Return its quota."""
        at = len(queues)
        queue = Q(
            name,
            quota=drawn.randrange(4),
            weight=drawn.choice((1, 1, 2, 3)),
            demand=0,
            parent=parent,
        )
        queues.append(queue)
        below = 0.0
        if depth < 2:
            for each in range(drawn.randrange(1, 4)):
                below += add(f"{name}{'xyz'[each]}", name, depth + 1)
        else:
            queue = replace(queue, demand=drawn.randrange(8))
        if fits:
            queue = replace(queue, quota=queue.quota + below)
        else:
            wide = (UNLIMITED, UNLIMITED, drawn.randrange(6))
            queue = replace(queue, quota=drawn.choice((UNLIMITED, 0, drawn.randrange(9))))
            queue = replace(queue, limit=drawn.choice(wide), priority=drawn.choice((100, 200)))
        queues[at] = queue
        return queue.quota

    for each in range(drawn.randrange(2, 4)):
        add("abc"[each], "", 0)
    return queues
