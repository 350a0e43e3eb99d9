"""A real Kueue admits what KAI's rule says, with the translation of the queues."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pytest

from lab.cluster.controlplane import ControlPlane
from lab.cluster.kueue import Kueue
from tests.cluster.server import Server
from tests.queues.examples import EXAMPLES, Example
from tests.queues.judged import Runs, Trial, judge
from tests.queues.kai import Q, fair_shares, leaves
from tests.queues.trees import random_tree

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def api(plane: ControlPlane, running_kueue: Kueue) -> Iterator[Server]:
    with Server(plane) as server:
        yield server


def ends(example: Example, phase: int, runs: Runs) -> bool:
    demand = example.demands[phase]
    expected: Mapping[str, float] = example.runs
    if phase < len(example.demands) - 1:
        shares = fair_shares(example.gpus, example.queues, demand)
        expected = {queue.name: shares[queue.name] for queue in leaves(example.queues)}
    return runs == {name: pods for name, pods in expected.items() if pods}


def test_the_examples_run_as_in_kai(api: Server) -> None:
    judge(
        api,
        [
            Trial(each.title, each.gpus, each.queues, each.demands, partial(ends, each))
            for each in EXAMPLES
        ],
        within_s=240,
    )


def is_fair(gpus: int, queues: Sequence[Q], phase: int, runs: Runs) -> bool:
    """Whether each queue is within one pod of KAI's share, no leaf below its quota or demand, and
    the sum of all is equal. The sum below an inner queue is equal too, unless its share or that
    of a sibling was rounded: Kueue may give the last GPU to another sibling than KAI does."""
    demand = {queue.name: queue.demand for queue in queues}
    shares, exact = fair_shares(gpus, queues, demand), fair_shares(gpus, queues, demand, 0)
    found, below = sums(queues, runs), leaves(queues)
    parts = {each.parent for each in queues if abs(exact[each.name] % 1 - 0.5) < 0.499}
    is_rounded = {"": False}
    for each in queues:
        is_rounded[each.name] = is_rounded[each.parent] or each.parent in parts
    total = sum(shares[each.name] for each in below)
    return sum(runs.values()) == total and all(
        abs(found[each.name] - shares[each.name]) <= (each in below or is_rounded[each.name])
        and (each not in below or found[each.name] >= min(each.quota, each.demand))
        for each in queues
    )


def sums(queues: Sequence[Q], runs: Runs) -> Runs:
    """Return the pods of each queue with all below."""
    above, found = {queue.name: queue.parent for queue in queues}, Counter[str]()
    for name, pods in runs.items():
        while name:
            found[name] += pods
            name = above[name]
    return found


def test_random_trees_are_as_fair_as_in_kai(api: Server) -> None:
    trials = []
    for seed in range(20):
        drawn = random.Random(seed)
        queues = random_tree(drawn, fits=True)
        gpus = int(sum(each.quota for each in queues if not each.parent)) + drawn.randrange(8)
        demand = {each.name: each.demand for each in queues if each.demand}
        over = partial(is_fair, gpus, queues)
        trials.append(Trial(f"seed {seed}", gpus, queues, [demand], over))
    judge(api, trials, within_s=400)


def test_three_teams_share_by_weight_and_one_that_wakes_gets_its_quota(api: Server) -> None:
    """The surplus of 10 GPUs is divided 5:3:2. The first team wakes last, and pods that borrowed
    are evicted for it."""
    teams = [Q("a", 5, weight=5), Q("b", 3, weight=3), Q("c", 2, weight=2)]
    ends = ({"b": 12, "c": 8}, {"a": 10, "b": 6, "c": 4})

    def over(phase: int, runs: Runs) -> bool:
        return all(abs(runs.get(team, 0) - pods) <= 1 for team, pods in ends[phase].items()) and (
            sum(runs.values()) == 20
        )

    trial = Trial("teams", 20, teams, [{"b": 20, "c": 20}, {"a": 20, "b": 20, "c": 20}], over)
    judge(api, [trial], within_s=120)
    assert trial.took_s[1] < 30
    assert trial.evicted["a"] == 0
