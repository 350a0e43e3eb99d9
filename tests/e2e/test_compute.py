"""Shares of a GPU's time in pods on a whole cluster, each compared with the same work alone.

A share is the work done in ten seconds, in percent of what the same program does alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from gpuslice.contract import names
from simgpu import load_output
from tests.e2e.whole import Whole, running
from tests.support import until

pytestmark = pytest.mark.e2e

_GROUPS = ((10, 90), (30, 70), (50, 50), (20, 30, 50))
_LOADS = {"small kernels": "50", "kernels of 10 ms": "10000", "graphs": "50 graph"}
_FIRST_S, _SECONDS, _LAST_S = 5, 10, 5
"""Those in the middle are counted: loads begin one after the other."""
_WITHIN = 2

Alone = Callable[[str], float]


@pytest.fixture(scope="module")
def whole(build_dir: Path) -> Iterator[Whole]:
    assert build_dir.is_dir()
    with running("1x23040Mi") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(whole: Whole) -> Alone:
    """The GPU's work for a load in a pod that has the GPU for itself, in percent of the time."""

    @cache
    def measured(load: str) -> float:
        return _worked(whole, {"alone": 50}, load)["alone"]

    return measured


@pytest.mark.parametrize("load", _LOADS)
@pytest.mark.parametrize("percents", _GROUPS, ids=str)
def test_pods_get_the_shares_that_they_request(
    whole: Whole, alone: Alone, percents: Sequence[int], load: str
) -> None:
    pods = {f"load-{number}": percent for number, percent in enumerate(percents)}
    worked = _worked(whole, pods, load)
    shares = {pod: worked[pod] / alone(load) * 100 for pod in pods}
    assert all(abs(shares[pod] - percent) <= _WITHIN for pod, percent in pods.items()), shares
    assert 100 - sum(shares.values()) <= _WITHIN, shares


def _worked(whole: Whole, pods: Mapping[str, int], load: str) -> Mapping[str, float]:
    """The GPU's work for each pod while all run the load, in percent of the time."""
    command = f"cuda-load {_FIRST_S + _SECONDS + _LAST_S} {_LOADS[load]} >/tmp/load 2>&1 &"
    try:
        for pod, percent in pods.items():
            limits = {names.RESOURCE_CORE: percent, names.RESOURCE_MEMORY_RATIO: 30}
            whole.run_pod(pod, {**limits, names.RESOURCE_SHARED: 1, "cpu": "400m"})
        for pod in pods:
            whole.inside(pod, command)
        return {pod: _end(whole, pod) for pod in pods}
    finally:
        whole.kubectl("delete", "pod", *pods, "--now")


def _end(whole: Whole, pod: str) -> float:
    output = ""

    def ended() -> bool:
        nonlocal output
        output = whole.inside(pod, "cat /tmp/load")
        return bool(load_output.totals(output))

    until(ended, f"the load in {pod} to end", 60)
    kept = [percent for at_s, percent in load_output.seconds(output) if int(at_s) > _FIRST_S]
    return sum(kept[:_SECONDS]) / _SECONDS
