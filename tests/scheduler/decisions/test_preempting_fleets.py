"""Whole fleets of fractions: urgent pods evict few others, and get the GPUs that these leave."""

from __future__ import annotations

import random
from typing import Final

import pytest

from tests.scheduler.cluster_model import Totals, node_of, nominated, uid_of

LOW: Final = 1
MIDDLE: Final = 500
HIGH: Final = 1000
URGENT: Final = 20
MAX_ROUNDS: Final = 20

FULL_OF: Final = ((25, 100), (25, 50), (50, 100), (100, 100), (20, 40))
"""The percentage of a GPU that each pod of low priority holds, and that an urgent pod requests."""


@pytest.mark.parametrize("nodes, gpus, is_slow", [(10, 8, False), (20, 4, True)])
@pytest.mark.parametrize("held, asked", FULL_OF)
def test_urgent_pods_run_on_a_fleet_full_of_fractions(
    held: int, asked: int, nodes: int, gpus: int, is_slow: bool
) -> None:
    """kube-scheduler offers the newest pods of a node, which hold different GPUs. An eviction frees
    a GPU for one pod, and at most twice the fewest possible pods are evicted. is_slow: whether the
    victims end one by one, while other urgent pods are tried."""
    chance = random.Random(held + asked)
    cluster = Totals(nodes, gpus)
    places = [(node, minor) for node in cluster.nodes for minor in range(gpus)] * (100 // held)
    chance.shuffle(places)
    for number, (node, minor) in enumerate(places):
        cluster.hold(f"low-{number}", node, minor, held, LOW)
    urgent = [cluster.add(f"high-{n}", HIGH, {}, gpu=asked) for n in range(URGENT)]
    for _ in range(MAX_ROUNDS):
        chance.shuffle(urgent)
        for pod in urgent:
            cluster.try_pod(pod)
            ending = cluster.ending()
            for each in chance.sample(ending, min(len(ending), 1)) if is_slow else ending:
                cluster.end(each)
    assert all(map(node_of, urgent))
    evicted = len(places) + URGENT - len(cluster.pods) + len(cluster.ending())
    assert evicted <= 2 * URGENT * asked // held


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restarts"])
def test_no_newcomer_takes_the_gpu_that_a_victim_left(restarts: bool) -> None:
    """After its victim has ended, a node's totals have room for a newcomer, too. Newcomers are
    tried first, because the urgent pods are in backoff."""
    cluster, chance = Totals(nodes=30, gpus=2), random.Random(3)
    for node in cluster.nodes:
        cluster.hold(f"kept-{node}", node, 1, 50, HIGH)
        cluster.hold(f"victim-{node}", node, 0, 100, LOW)
    urgent = [cluster.add(f"urgent-{n}", MIDDLE, {}, gpu=80) for n in range(len(cluster.nodes))]
    for pod in urgent:
        cluster.try_pod(pod)
    assert sorted(map(nominated, urgent)) == sorted(cluster.nodes)
    victims = cluster.ending()
    assert {uid_of(each) for each in victims} == {f"victim-{node}" for node in cluster.nodes}
    newcomers = []
    for number, victim in enumerate(chance.sample(victims, len(victims))):
        cluster.end(victim)
        if restarts:
            cluster.start()
        newcomers.append(cluster.add(f"new-{number}", LOW, {}, gpu=60))
        for pod in newcomers:
            cluster.try_pod(pod)
    for pod in urgent:
        cluster.try_pod(pod)
    assert all(node_of(pod) == nominated(pod) != "" for pod in urgent)
    assert not any(map(node_of, newcomers))
