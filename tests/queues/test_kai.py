"""The oracle itself: it agrees with the examples, but for those that are scaled."""

from __future__ import annotations

import pytest

from tests.queues.examples import EXAMPLES, SCALED, Example
from tests.queues.kai import fair_shares, leaves


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.title)
def test_the_examples_are_kais(example: Example) -> None:
    shares = fair_shares(example.gpus, example.queues, example.demands[-1])
    runs = {queue.name: shares[queue.name] for queue in leaves(example.queues)}
    assert (runs == example.runs) == (example.title not in SCALED), runs
    is_over = sum(runs.values()) > example.gpus
    assert is_over == (example.title in SCALED)
