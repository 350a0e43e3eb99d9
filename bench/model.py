"""Runs the real arbiter and the real limiter with a model of a GPU, in virtual time.

c/compute_model.c states the assumptions about a GPU. The same arguments give the same result.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from cffi import FFI

from gpuslice.contract import lease_file, region_file
from gpuslice.contract.grant_file import Policy
from shim.arbiter.clock import Clock, moved
from shim.arbiter.member import Share, parts_ppm
from shim.arbiter.turns import Turns
from traces.host import BUILD, ROOT

_LIBRARY: Final = BUILD / "lib/tests/libcompute-model.so"
_START_NS: Final = 1_000_000_000_000
_STEPS: Final = 20_000

_ffi: Final = FFI()
_ffi.cdef((ROOT / "bench/c/compute_model.h").read_text())


def _library() -> Any:
    return _ffi.dlopen(str(_LIBRARY))


@dataclass(frozen=True)
class Program:
    """A process. Its thread repeats its kernels with CPU time between them. After each step of
    `launches` launches it waits for the GPU, and then uses the CPU for `step_gap_us`.

    beside: kernels of further streams; a thread for each launches them back to back.
    first_launches: before that, the first kernel is launched so often, and takes `first_us`.
    """

    kernels_us: Sequence[float] = (50,)
    waits_each: bool = False
    gap_us: float = 0
    launches: int = 0
    """0: the thread never waits."""
    step_gap_us: float = 0
    beside: Sequence[Sequence[float]] = ()
    first_us: float = 0
    first_launches: int = 0


@dataclass(frozen=True)
class Container:
    core_percent: int
    programs: Sequence[Program] = (Program(),)
    policy: Policy = Policy.FAIR


@dataclass(frozen=True)
class Outcome:
    """Percentages of the GPU's time: each container's over the whole run (`share`) and in each
    second (`windows`), as the library counted it (`counted`), and the idle time. Of each
    container's first program: steps (of programs that never wait: launches) per second, and the
    durations of steps."""

    share: Mapping[str, float]
    windows: Mapping[str, Sequence[float]]
    counted: Mapping[str, float]
    idle: float
    rate: Mapping[str, float]
    p50_us: Mapping[str, float]
    p99_us: Mapping[str, float]

    def error(self, wanted: Mapping[str, float]) -> float:
        return max(abs(self.share[key] - wanted[key]) for key in wanted)


@dataclass
class Model:
    """A GPU with containers. arbiter: whether the arbiter runs. Without the arbiter, each container
    uses its own part of each cycle. arbiter_late_us: the maximum delay of an arbiter's step.
    seed: of these delays."""

    containers: Mapping[str, Container]
    limited: bool = True
    slice_us: int = 2000
    switch_us: int = 0
    wake_us: int = 100
    arbiter_late_us: int = 300
    arbiter: bool = True
    seed: int = 1
    forged: Mapping[str, Callable[[int, region_file.Compute], region_file.Compute]] = field(
        default_factory=dict
    )
    """What programs of containers write into their regions, from the time and what is there."""
    clocks_ns: Mapping[str, int] = field(default_factory=dict)
    """By how much containers' clocks are ahead of the host's."""
    _sequences: dict[str, int] = field(default_factory=dict)
    _clocks: defaultdict[str, Clock] = field(default_factory=lambda: defaultdict(Clock))

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._c = _library()
        times_ns = self.slice_us * 1000, self.switch_us * 1000, self.wake_us * 1000
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
            self.shares[key] = Share(container.core_percent, container.policy)
        self._share()

    def change(self, percents: Mapping[str, int]) -> None:
        """Change the containers' shares, which the arbiter sees at its next scan."""
        self.shares = {key: Share(percent) for key, percent in percents.items()}
        self._share()

    def restart(self) -> None:
        """Replace the arbiter by a new one."""
        self.turns = Turns()
        self._clocks.clear()
        self._share()

    def _share(self) -> None:
        self.turns.set_shares(self.shares)
        for number in self.numbers.values():
            self._c.model_check_launches(self._model, number, self.turns.launches_checked)

    def _add(self, key: str, program: Program) -> int:
        launches = 1 if program.waits_each else program.launches
        times_us = program.gap_us, program.step_gap_us
        first = _thread(program.kernels_us, launches, *times_us)
        first.first_ns, first.first_launches = int(program.first_us * 1000), program.first_launches
        process = int(self._c.model_add(self._model, self.numbers[key], first))
        for kernels_us in program.beside:
            self._c.model_add_thread(self._model, process, _thread(kernels_us, 1))
        return process

    def _write(self, leases: Mapping[str, lease_file.Lease]) -> None:
        for key, lease in leases.items():
            sequence = self._sequences[key] = self._sequences.get(key, 0) + 1
            lease = moved(self._clocks[key].to_container(lease), -self.clocks_ns.get(key, 0))
            for write in lease_file.update(0, sequence, lease):
                offset = write.offset - lease_file.HEADER.size
                self._c.model_write_lease(
                    self._model, self.numbers[key], offset, write.data, len(write.data)
                )

    def _write_own_parts(self) -> None:
        """Write each container's own part of the cycle into its lease, as the arbiter does."""
        offset = 0
        for key, part in parts_ppm(self.shares).items():
            self._write({key: lease_file.Lease(1, share_ppm=part, offset_ppm=offset)})
            offset += part

    def _seen(self) -> Mapping[str, region_file.Compute]:
        seen = {}
        for key, number in self.numbers.items():
            out = _ffi.new("uint64_t[8]")
            self._c.model_sample(self._model, number, out)
            found = moved(region_file.compute(_ffi.buffer(out)[:]), self.clocks_ns.get(key, 0))
            if key in self.forged:
                found = self.forged[key](self.now_ns, found)
                record = _ffi.new("uint64_t[8]")
                _ffi.memmove(record, region_file.COMPUTE.pack_in_order(*found), 64)
                self._c.model_overwrite(self._model, number, record)
            seen[key] = self._clocks[key].to_host(self.now_ns, found)
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

    def freeze(self, key: str, seconds: float) -> None:
        """Stop the container's processes for so long."""
        until_ns = self.now_ns + int(seconds * 1e9)
        self._c.model_freeze(self._model, self.numbers[key], until_ns)

    def _read(self, program: int) -> Sequence[int]:
        """Return the program's GPU time, the GPU's idle time, and the program's launches and
        steps."""
        out = _ffi.new("uint64_t[4]")
        self._c.model_read(self._model, program, out)
        return list(out)

    def done_ns(self, key: str) -> int:
        return sum(self._read(each)[0] for each in self.programs[key])

    def done(self, key: str) -> int:
        """Return the steps of the container's first program, or its launches if it never waits."""
        _, _, launches, steps = self._read(self.programs[key][0])
        return steps or launches

    def _steps_us(self, key: str, count: int) -> Sequence[int]:
        """Return the sorted durations of the latest steps of the container's first program."""
        out = _ffi.new(f"uint32_t[{_STEPS}]")
        found = self._c.model_steps(self._model, self.programs[key][0], out, min(count, _STEPS))
        return sorted(out[0:found]) if found else [0]

    def share_of(self, key: str, seconds: float) -> float:
        """Run for the seconds. Return the container's part of the GPU's time, in percent."""
        before_ns = self.done_ns(key)
        self.run(seconds)
        return (self.done_ns(key) - before_ns) / seconds / 1e7

    def measure(self, seconds: int = 10, settle_s: float = 1.0) -> Outcome:
        """Run for `settle_s`, then measure for `seconds`. Return the outcome of the latter."""
        self.run(settle_s)
        keys = tuple(self.containers)
        before = {key: self.done(key) for key in keys}
        counted = {key: each.spent_ns for key, each in self._seen().items()}
        idle_ns = self._read(0)[1]
        marks: dict[str, list[int]] = {key: [self.done_ns(key)] for key in keys}
        for _ in range(seconds):
            self.run(1)
            for key in keys:
                marks[key].append(self.done_ns(key))
        seen = self._seen()
        done = {key: self.done(key) - before[key] for key in keys}
        steps = {key: self._steps_us(key, done[key]) for key in keys}
        return Outcome(
            share={key: (each[-1] - each[0]) / seconds / 1e7 for key, each in marks.items()},
            windows={
                key: [(b - a) / 1e7 for a, b in pairwise(each)] for key, each in marks.items()
            },
            counted={key: (seen[key].spent_ns - counted[key]) / seconds / 1e7 for key in keys},
            idle=(self._read(0)[1] - idle_ns) / seconds / 1e7,
            rate={key: done[key] / seconds for key in keys},
            p50_us={key: steps[key][len(steps[key]) // 2] for key in keys},
            p99_us={key: steps[key][len(steps[key]) * 99 // 100] for key in keys},
        )


def _thread(
    kernels_us: Sequence[float], launches: int, gap_us: float = 0, step_gap_us: float = 0
) -> Any:
    kernels_ns = [int(us * 1000) for us in kernels_us]
    gaps_ns = int(gap_us * 1000), int(step_gap_us * 1000)
    return _ffi.new("struct model_thread *", (kernels_ns, len(kernels_ns), launches, *gaps_ns))


def alone(program: Program, seconds: int = 2, slice_us: int = 2000) -> Outcome:
    """Return the outcome of the program `a` alone and without a limit."""
    model = Model({"a": Container(100, (program,))}, limited=False, slice_us=slice_us)
    return model.measure(seconds, 0.1)
