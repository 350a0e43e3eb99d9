"""Runs the real arbiter and the real limiter with a model of a GPU, in virtual time.

compute_model.c states the assumptions about a GPU. The same arguments give the same result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from cffi import FFI

from gpuslice.contract import lease_file, region_file
from gpuslice.contract.grant_file import Policy
from shim.arbiter.turns import Share, Turns, parts_ppm
from tests.support import ROOT

_LIBRARY: Final = ROOT / "build/dev/lib/tests/libcompute-model.so"
_START_NS: Final = 1_000_000_000_000
_LAUNCH_NS: Final = 2000

_ffi: Final = FFI()
_ffi.cdef((ROOT / "tests/shim/c/compute_model.h").read_text())


def _library() -> Any:
    return _ffi.dlopen(str(_LIBRARY))


@dataclass(frozen=True)
class Program:
    """A process that launches forever. kernels_us: its kernels' durations, which it repeats."""

    kernels_us: Sequence[float] = (50,)
    waits_each: bool = False


@dataclass(frozen=True)
class Container:
    core_percent: int
    programs: Sequence[Program] = (Program(),)
    forced: bool = False


@dataclass(frozen=True)
class Outcome:
    """Percentages of the GPU's time: each container's over the whole run (`share`) and in each
    second (`windows`), the idle time, and the idle time by the arbiter's count (`turns_idle`)."""

    share: Mapping[str, float]
    windows: Mapping[str, Sequence[float]]
    idle: float
    turns_idle: float

    def error(self, wanted: Mapping[str, float]) -> float:
        return max(abs(self.share[key] - wanted[key]) for key in wanted)


@dataclass
class Model:
    """A GPU with containers. arbiter: whether the arbiter runs. Without the arbiter, each container
    uses its own part of each cycle. arbiter_late_us: the maximum delay of an arbiter's step."""

    containers: Mapping[str, Container]
    limited: bool = True
    slice_us: int = 2000
    wake_us: int = 100
    arbiter_late_us: int = 300
    arbiter: bool = True
    _sequences: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(1)
        self._c = _library()
        times_ns = self.slice_us * 1000, _LAUNCH_NS, self.wake_us * 1000
        options = _ffi.new("struct model_options *", (*times_ns, self.limited))
        self._model = _ffi.gc(self._c.model_new(options, _START_NS), self._c.model_free)
        self.now_ns = self._arbiter_ns = _START_NS
        self.programs: dict[str, list[int]] = {}
        self.numbers: dict[str, int] = {}
        self.turns = Turns()
        self.shares: dict[str, Share] = {}
        self.enter(self.containers)
        if not self.arbiter:
            self._write_own_parts()

    def enter(self, containers: Mapping[str, Container]) -> None:
        """Start these containers, which the arbiter sees at its next scan."""
        self.containers = {**self.containers, **containers}
        for key, container in containers.items():
            self.numbers[key] = len(self.numbers)
            self.programs[key] = [self._add(key, each) for each in container.programs]
            self.shares[key] = Share(
                container.core_percent, Policy.CAPPED if container.forced else Policy.FAIR
            )
        self._share()

    def change(self, percents: Mapping[str, int]) -> None:
        """Change the containers' shares, which the arbiter sees at its next scan."""
        self.shares = {key: Share(percent) for key, percent in percents.items()}
        self._share()

    def _share(self) -> None:
        self.turns.set_shares(self.shares)
        for number in self.numbers.values():
            self._c.model_check_launches(self._model, number, self.turns.launches_checked)

    def _add(self, key: str, program: Program) -> int:
        kernels = [int(us * 1000) for us in program.kernels_us]
        container = self._model, self.numbers[key]
        return int(self._c.model_add(*container, kernels, len(kernels), program.waits_each))

    def _write(self, leases: Mapping[str, lease_file.Lease]) -> None:
        for key, lease in leases.items():
            sequence = self._sequences[key] = self._sequences.get(key, 0) + 1
            for write in lease_file.update(0, sequence, lease):
                offset = write.offset - lease_file.HEADER.size
                self._c.model_write_lease(
                    self._model, self.numbers[key], offset, write.data, len(write.data)
                )

    def _write_own_parts(self) -> None:
        """Write each container's own part of the cycle into its lease, as the arbiter does."""
        offset = 0
        for key, part in parts_ppm(self.shares).items():
            self._write({key: lease_file.Lease(1, 0, 0, part, offset)})
            offset += part

    def _seen(self) -> Mapping[str, region_file.Compute]:
        seen = {}
        for key, number in self.numbers.items():
            out = _ffi.new("uint64_t[3]")
            self._c.model_sample(self._model, number, out)
            seen[key] = region_file.Compute(out[0], out[1], busy_ns=out[2])
        return seen

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        end_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < end_ns:
            # If the arbiter was stopped, its next step is overdue and made now.
            step_ns = max(self._arbiter_ns, self.now_ns)
            self.now_ns = min(end_ns, step_ns) if self.arbiter else end_ns
            self._c.model_run(self._model, self.now_ns)
            if self.arbiter and self.now_ns >= self._arbiter_ns:
                leases, again_ns = self.turns.step(self.now_ns, self._seen())
                self._write(leases)
                late_ns = self._random.randrange(self.arbiter_late_us * 1000 + 1)
                self._arbiter_ns = max(again_ns, self.now_ns + 50_000) + late_ns

    def kill(self, key: str) -> None:
        self._c.model_kill(self._model, self.numbers[key])

    def _read(self, program: int) -> tuple[int, int]:
        """Return the program's work and the GPU's idle time."""
        out = _ffi.new("uint64_t[2]")
        self._c.model_read(self._model, program, out)
        return out[0], out[1]

    def done_ns(self, key: str) -> int:
        return sum(self._read(each)[0] for each in self.programs[key])

    def share_of(self, key: str, seconds: float) -> float:
        """Run for the seconds. Return the container's part of the GPU's time, in percent."""
        before_ns = self.done_ns(key)
        self.run(seconds)
        return (self.done_ns(key) - before_ns) / seconds / 1e7

    def _idle_ns(self) -> tuple[int, int]:
        """Return the GPU's idle time, and the arbiter's count of it."""
        return self._read(0)[1], sum(each.idle_ns for each in self.turns._members.values())

    def measure(self, seconds: int = 10, settle_s: float = 1.0) -> Outcome:
        """Run for `settle_s`, then measure for `seconds`. Return the outcome of the latter."""
        self.run(settle_s)
        idle_ns = self._idle_ns()
        marks: dict[str, list[int]] = {key: [self.done_ns(key)] for key in self.containers}
        for _ in range(seconds):
            self.run(1)
            for key in self.containers:
                marks[key].append(self.done_ns(key))
        idle, turns_idle = (
            (after - before) / seconds / 1e7
            for before, after in zip(idle_ns, self._idle_ns(), strict=True)
        )
        return Outcome(
            {key: (each[-1] - each[0]) / seconds / 1e7 for key, each in marks.items()},
            {key: [(b - a) / 1e7 for a, b in pairwise(each)] for key, each in marks.items()},
            idle,
            turns_idle,
        )


def alone(program: Program, seconds: int = 2) -> float:
    """Return the percent of the GPU's time that the program gets alone and without a limit."""
    model = Model({"a": Container(100, (program,))}, limited=False)
    return model.measure(seconds, 0.1).share["a"]
