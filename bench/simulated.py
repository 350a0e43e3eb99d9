"""Measures the shares of the simulated GPU's time in real time, with programs, arbiters and faults
as on a node. The machine must be idle: the simulated GPU, the programs and the arbiters share its
cores."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

import psutil

from bench import Result
from bench.disturbed import lost
from bench.loads import COPY_US, Host, Load
from gpuslice.contract.grant_file import Policy

_AWAITED: Final = Load(0, 200, options="--step 1")
_CAPPED: Final = {
    "kernels of 50 us": Load(0, 50),
    "graphs of 20 kernels": Load(0, 200, "graph"),
    "cooperative launches": Load(0, 200, "cooperative"),
    "launches with three attributes, in clusters": Load(0, 200, "cluster", "--blocks 2"),
    "each launch awaited": _AWAITED,
    "grids of a million blocks": Load(0, 200, options="--blocks 1000000"),
    "8 streams": Load(0, 50, options="--streams 8"),
    "8 processes": Load(0, 200, processes=8),
}
_SMALL: Final = Load(0, 20)
_BIG: Final = Load(0, 50_000)
_GRAPHS: Final = Load(0, 20, "graph")
_GROUPS: Final = {
    "small kernels": ((_SMALL, 30), (_SMALL, 70)),
    "big kernels beside small": ((_BIG, 30), (_SMALL, 70)),
    "graphs beside small kernels": ((_GRAPHS, 30), (_SMALL, 70)),
    "copies beside small kernels": ((Load(0, COPY_US, "copy"), 30), (_SMALL, 70)),
    "launches as by NVIDIA's runtime, copies on another stream": (
        (Load(0, 20, "runtime", "--beside copy"), 30),
        (_SMALL, 70),
    ),
    "150 kinds, kernels of 20 ms beside": (
        (Load(0, 20, options="--kinds 150 --beside 20000"), 30),
        (_SMALL, 70),
    ),
    "big kernels, graphs, small kernels": ((_BIG, 20), (_GRAPHS, 30), (_SMALL, 50)),
}
_GEMM: Final = Load(0, 1_400, options="--step 4 --gap-us 5")
_DECODE: Final = Load(0, 5, options="--to-us 20 --kinds 15 --step 300 --gap-us 35 --pause-us 600")
_PAIRS: Final = {
    "1.4 ms | 1.4 ms": (_GEMM, _GEMM),
    "decode | decode": (_DECODE, _DECODE),
    "decode | 1.4 ms": (_DECODE, _GEMM),
    "1.4 ms | decode": (_GEMM, _DECODE),
    "20 us, gaps of 60 | 1.4 ms": (
        Load(0, 20, options="--step 50 --gap-us 60 --pause-us 30"),
        _GEMM,
    ),
    "each 45 us awaited | 1.4 ms": (Load(0, 45, options="--step 1 --pause-us 38"), _GEMM),
}
_TOLERANCE_POINTS: Final = 4
_STOP: Final = "arbiters stop for 3.9 s"
_RESTART: Final = "parents are killed, an arbiter begins 2 s later"
_FROZEN: Final = "a container stops for 3.9 s"
_DISTURBED: Final = {
    "small kernels": (_SMALL, _SMALL),
    "big kernels beside small": (_BIG, _SMALL),
    "decode beside 1.4 ms": (_DECODE, _GEMM),
}
_DISTURBING: Final = (_STOP, _RESTART, _FROZEN)
"""Faults with which all of these groups run."""
AT_MOST: Final = {
    "simulated_capped_error_most_points": 2.0,
    "simulated_error_most_points": 2.0,
    "simulated_loss_percent": 2.0,
    "simulated_below_floor_most_points": 0.0,
    "simulated_fault_below_share_most_points": 10.0,
    "simulated_fault_most_of_share": 2.0,
}
AT_LEAST: Final = {"control_error_points": 15.0}


@dataclass(frozen=True)
class Simulation:
    """Measures on the host, for `seconds` each, and adds rows and figures to the result."""

    result: Result
    host: Host
    seconds: int

    def most(self, figure: str, value: float) -> bool:
        """Keep the largest value of the figure. Return whether this value misses the goal."""
        self.result.most(figure, value)
        return value > AT_MOST[figure]

    def capped(self, name: str, load: Load) -> None:
        """Measure a single container with the policy `capped`. The share of a program that waits
        for each launch is of the GPU's time, of which it may use less than its cap alone."""
        got = self.host.run([replace(load, policy=Policy.CAPPED)], min(self.seconds, 6))[0]
        alone, is_awaited = self.host.alone(load).share, load.options == _AWAITED.options
        share = got.share if is_awaited else got.share / alone * 100
        wanted = min(load.percent, alone) if is_awaited else load.percent
        missed = self.most("simulated_capped_error_most_points", abs(share - wanted))
        about = f"alone {alone:.1f}{'; MISSED' if missed else ''}"
        self.result.row(f"simulated, capped: {name}", str(load.percent), f"{share:.2f}", about)

    def shares(
        self,
        loads: Sequence[Load],
        meanwhile: Callable[[], None] = lambda: None,
        limited: bool = True,
    ) -> Sequence[float]:
        """Run containers at the same time, and return the progress of each in percent."""
        got = self.host.run(loads, self.seconds, limited=limited, meanwhile=meanwhile)
        return [
            each.share / self.host.alone(load).share * 100
            for each, load in zip(got, loads, strict=True)
        ]

    def row(
        self, name: str, loads: Sequence[Load], shares: Sequence[float], about: str, missed: bool
    ) -> None:
        wanted = " ".join(str(load.percent) for load in loads)
        about += "; MISSED" if missed else ""
        self.result.row(f"simulated, {name}", wanted, _percents(shares), about)

    def group(self, name: str, loads: Sequence[Load]) -> None:
        """Measure containers that saturate the GPU."""
        shares = self.shares(loads)
        loss = 100 - sum(shares)
        missed = self.most("simulated_error_most_points", _error(loads, shares))
        missed |= self.most("simulated_loss_percent", loss)
        self.row(name, loads, shares, f"loss {loss:.2f} %", missed)

    def pair(self, name: str, loads: Sequence[Load]) -> None:
        """Measure a pair of the cases in virtual time."""
        hardware = self.shares(loads, limited=False)
        got = self.host.run(loads, self.seconds)
        whole = [self.host.alone(load) for load in loads]
        pairs = list(zip(got, whole, strict=True))
        shares = [each.share / alone.share * 100 for each, alone in pairs]
        slower = " ".join(f"{each.step_p50_us / alone.step_p50_us:.2f}" for each, alone in pairs)
        below = max(
            load.percent - _TOLERANCE_POINTS - share
            for load, share in zip(loads, shares, strict=True)
        )
        missed = self.most("simulated_below_floor_most_points", below)
        about = f"hardware {_percents(hardware)}; p50 x {slower}"
        self.row(f"pair: {name}", loads, shares, about, missed)

    def faults(self, quick: bool) -> None:
        for name in list(_faults(self.host, ExitStack()))[: 1 if quick else None]:
            for group in _DISTURBED if name in _DISTURBING else ("small kernels",):
                loads = _with_shares(*zip(_DISTURBED[group], (30, 70), strict=True))
                with ExitStack() as restarted:
                    fault, away_s = _faults(self.host, restarted)[name]
                    self._fault(f"{name}; {group}", loads, fault, away_s)

    def _fault(
        self, name: str, loads: Sequence[Load], fault: Callable[[], None], away_s: float
    ) -> None:
        def delayed() -> None:
            time.sleep(min(3, self.seconds / 3))
            fault()

        shares = self.shares(loads, delayed)
        of_share = [
            self.host.alone(load).share * share / load.percent / 100
            for share, load in zip(shares, loads, strict=True)
        ]
        percents = [load.percent for load in loads]
        below, most = lost(percents, shares, of_share, away_s / self.seconds)
        missed = self.most("simulated_fault_below_share_most_points", below)
        missed |= self.most("simulated_fault_most_of_share", most)
        self.row(name, loads, shares, f"at most {most:.2f} of a share", missed)

    def control(self) -> None:
        """Measure without the library. Shares must be wrong, or this measures nothing."""
        loads = _with_shares((_SMALL, 30), (_SMALL, 70))
        shares = self.shares(loads, limited=False)
        error = self.result.figures["control_error_points"] = _error(loads, shares)
        missed = error < AT_LEAST["control_error_points"]
        self.row("control: no library", loads, shares, "", missed)


def _percents(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.1f}" for share in shares)


def _with_shares(*loads: tuple[Load, int]) -> Sequence[Load]:
    return [replace(load, percent=percent) for load, percent in loads]


def _error(loads: Sequence[Load], shares: Sequence[float]) -> float:
    return max(abs(share - load.percent) for share, load in zip(shares, loads, strict=True))


def _stop(processes: Sequence[psutil.Process], stop_s: float) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(stop_s)
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it may have been killed meanwhile
            process.send_signal(signal.SIGCONT)


def _faults(host: Host, restarted: ExitStack) -> Mapping[str, tuple[Callable[[], None], float]]:
    """Return what happens to arbiters, to their parents, or to the first container, and for how
    long that container does not want the GPU or shows something else. On a node, the parent is the
    node agent. Only the first arbiter leases the GPU. restarted: ends a new arbiter."""

    def kill(count: int | None) -> None:
        for arbiter in host.arbiters()[:count]:
            arbiter.kill()

    def parents() -> Sequence[psutil.Process]:
        return [psutil.Process(each.process.pid) for each in host.started]

    def restart() -> None:
        for parent in parents():
            parent.kill()
        time.sleep(2)
        restarted.enter_context(host.arbiter())

    return {
        "the arbiter is killed": (lambda: kill(1), 0),
        "all arbiters are killed": (lambda: kill(None), 0),
        "arbiters stop for 1 s": (lambda: _stop(host.arbiters(), 1), 0),
        _STOP: (lambda: _stop(host.arbiters(), 3.9), 0),
        "arbiters' parents stop for 4 s": (lambda: _stop(parents(), 4), 0),
        "arbiters and parents stop for 4 s": (lambda: _stop([*parents(), *host.arbiters()], 4), 0),
        _RESTART: (restart, 0),
        "a container is killed": (host.kill_first, 10),
        _FROZEN: (lambda: _stop(host.first(), 3.9), 3.9),
        "a region shows random numbers for 3 s": (lambda: host.forge(3), 10),
    }


def measure(result: Result, host: Host, quick: bool) -> None:
    simulation = Simulation(result, host, 3 if quick else 10)
    every = 4 if quick else 1
    for name, pair in list(_PAIRS.items())[::every]:
        simulation.pair(name, _with_shares((pair[0], 30), (pair[1], 70)))
    for name, load in list(_CAPPED.items())[::every]:
        for percent in (30, 70):
            simulation.capped(name, replace(load, percent=percent))
    for name, loads in list(_GROUPS.items())[::every]:
        simulation.group(name, _with_shares(*loads))
    simulation.control()
    simulation.faults(quick)
