"""Judges the shares around faults in virtual time: of the arbiter, of a container, and of a clock.

In every ten seconds, each container should make the progress of its share, less 10 points. None
should get twice its share of GPU time while another makes less progress than its share.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
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
class Watched(Model):
    """Notes the containers' GPU time ten times a second, unless `begin` runs it."""

    _notes: list[Mapping[str, int]] = field(default_factory=list)

    def begin(self, seconds: float) -> None:
        super().run(seconds)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * _LOOKS_PER_S)):
            self._notes.append({key: self.done_ns(key) for key in self.containers})
            super().run(1 / _LOOKS_PER_S)

    def parts(self, seconds: int) -> Iterator[Mapping[str, float]]:
        """Yield the containers' parts of the GPU's time, in any so many seconds."""
        for first, last in zip(self._notes, self._notes[seconds * _LOOKS_PER_S :], strict=False):
            yield {key: (last[key] - first[key]) / seconds / _S for key in last}


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
    "a clock is 0.2 s behind": Fault(lambda _: None, clock_s=-0.2),
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
    model = Watched(containers, switch_us=SWITCH_US, seed=case.seed)
    model.clocks_ns = {"0": int(fault.clock_s * _S)}
    model.begin(3 + case.seed * 0.037)
    model.run(seconds - 0.2)
    fault.happens(model)
    model.run(seconds - 0.2)
    shares = [entry.percent / 100 for entry in case.entries]
    least, below, most = [1.0 for _ in shares], 0.0, 0.0
    for parts in model.parts(seconds):
        got = [part / need for part, need in zip(parts.values(), case.needs(), strict=True)]
        least = [min(pair) for pair in zip(least, got, strict=True)]
        of_share = [part / share for part, share in zip(parts.values(), shares, strict=True)]
        lack, beside = lost(shares, got, of_share, fault.away_s / seconds)
        below, most = max(below, 100 * lack), max(most, beside)
    figures = {"fault_below_share_most_points": below, "fault_most_of_share": most}
    about = f"the least of any {seconds} s; {below:.1f} points below; {most:.2f} of a share"
    return row(case, least, about, figures)


def lost(
    shares: Sequence[float], got: Sequence[float], of_share: Sequence[float], away: float
) -> tuple[float, float]:
    """Return by how much a container is below its share at most, and the most that one has of its
    share while another is below its own. got: the containers' progress. of_share: their GPU time,
    divided by their shares. away: for which part of the time the first one is not judged."""
    floors = [shares[0] * max(1 - away, 0), *shares[1:]]
    lacks = [floor - each for floor, each in zip(floors, got, strict=True)]
    beside = [
        each
        for number, each in enumerate(of_share)
        if any(lack > 0 for other, lack in enumerate(lacks) if other != number)
    ]
    return max(lacks), max(beside, default=0)
