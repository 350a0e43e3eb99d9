"""Judges the shares around faults in virtual time: of the arbiter, of a container, and of a clock.

In every ten seconds, each container should make the progress of its share, less 10 points. None
should get twice its share of GPU time while another makes less progress than its share.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from bench.model import Container, Model
from bench.virtual import PROGRAMS, SWITCH_US, Case, Entry, Row, row
from gpuslice.contract.region_file import Compute

_FORGED_S: Final = 3
_LOOKS_PER_S: Final = 10
_ALWAYS_S: Final = 60
"""Longer than any measurement."""
_S: Final = 1_000_000_000
_GROUPS: Final = (
    (("50 us", 30), ("50 us", 70)),
    (("50 ms", 30), ("50 us", 70)),
    (("decode", 30), ("1.4 ms", 70)),
    (("1.4 ms", 30), ("decode", 70)),
    (("decode", 30), ("decode", 70)),
    (("each 45 us awaited", 30), ("1.4 ms", 70)),
    (("50 us", 20), ("decode", 30), ("1.4 ms", 50)),
)


@dataclass
class _Watched(Model):
    """Notes the containers' GPU time ten times a second."""

    notes: list[Mapping[str, int]] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * _LOOKS_PER_S)):
            self.notes.append({key: self.done_ns(key) for key in self.containers})
            super().run(1 / _LOOKS_PER_S)


class Fault(NamedTuple):
    """What happens, mostly to the first container. away_s: for how long that container does not
    want the GPU, or shows something else."""

    happens: Callable[[Model], None]
    away_s: float = 0
    clock_s: float = 0
    """By how much the first container's clock is ahead."""


def _silence(seconds: float, restarts: bool, model: Model) -> None:
    model.arbiter = False
    model.run(seconds)
    model.arbiter = True
    if restarts:
        model.restart()


def _forge(shows: Callable[[int, Compute], Compute], model: Model) -> None:
    model.forged = {"0": shows}
    model.run(_FORGED_S)
    model.forged = {}


def _random(now_ns: int, _: Compute) -> Compute:
    source = random.Random(now_ns)
    return Compute._make(source.getrandbits(64) for _ in Compute._fields)


_FORGED: Final[Mapping[str, Callable[[int, Compute], Compute]]] = {
    "zeros": lambda _now, _: Compute(),
    "ones": lambda _now, _: Compute._make([2**64 - 1] * len(Compute._fields)),
    "random numbers": _random,
    "random numbers after launches": lambda now, _: _random(now, _)._replace(launched_ns=now),
    "all GPU time": lambda _now, seen: seen._replace(spent_ns=2**64 - 1),
    "no GPU time": lambda _now, seen: seen._replace(spent_ns=0),
    "work at all times": lambda now, seen: seen._replace(launched_ns=now, busy_until_ns=now + _S),
}
FAULTS: Final[Mapping[str, Fault]] = {
    "the arbiter is killed": Fault(partial(_silence, 0.2, True)),
    "an arbiter begins 2 s later": Fault(partial(_silence, 2, True)),
    "the arbiter stops for 1 s": Fault(partial(_silence, 1, False)),
    "the arbiter stops for 3.9 s": Fault(partial(_silence, 3.9, False)),
    "a container is killed": Fault(lambda model: model.kill("0"), _ALWAYS_S),
    "a container stops for 1 s": Fault(lambda model: model.freeze("0", 1), 1),
    "a container stops for 3.9 s": Fault(lambda model: model.freeze("0", 3.9), 3.9),
    **{
        f"a region shows {name}": Fault(partial(_forge, shows), _ALWAYS_S)
        for name, shows in _FORGED.items()
    },
    "a clock is 100 s ahead": Fault(lambda _: None, clock_s=100),
    "a clock is 100 s behind": Fault(lambda _: None, clock_s=-100),
}
CASES: Final = [
    Case(name, tuple(Entry(*each) for each in group)) for name in FAULTS for group in _GROUPS
]


def judge(case: Case, seconds: int) -> Row:
    """Judge any `seconds` around the fault that names the case's group."""
    fault = FAULTS[case.group]
    containers = {
        str(number): Container(entry.percent, (PROGRAMS[entry.program],))
        for number, entry in enumerate(case.entries)
    }
    model = _Watched(containers, switch_us=SWITCH_US, seed=case.seed)
    model.clocks_ns = {"0": int(fault.clock_s * _S)}
    Model.run(model, 3 + case.seed * 0.037)
    model.run(seconds - 0.2)
    fault.happens(model)
    model.run(seconds - 0.2)
    shares = [entry.percent / 100 for entry in case.entries]
    floors = [shares[0] * max(1 - fault.away_s / seconds, 0), *shares[1:]]
    least, below, most = [1.0 for _ in shares], 0.0, 0.0
    for first, last in zip(model.notes, model.notes[seconds * _LOOKS_PER_S :], strict=False):
        gpu = [(last[key] - first[key]) / seconds / _S for key in containers]
        got = [each / need for each, need in zip(gpu, case.needs(), strict=True)]
        least = [min(pair) for pair in zip(least, got, strict=True)]
        lacks = [floor - each for floor, each in zip(floors, got, strict=True)]
        below = max(below, *(100 * each for each in lacks))
        for number, share in enumerate(shares):
            if any(lack > 0 for other, lack in enumerate(lacks) if other != number):
                most = max(most, gpu[number] / share)
    figures = {"fault_below_share_most_points": below, "fault_most_of_share": most}
    about = f"the least of any {seconds} s; {below:.1f} points below; {most:.2f} of a share"
    return row(case, least, about, figures)
