"""The cases of the benchmark in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from bench import Result, disturbed
from bench.virtual import Case, Entry, Judge, add, background, capped, fair, rows
from gpuslice.contract.grant_file import Policy

_SHARES: Final = ((10, 90), (30, 70), (50, 50))
_KERNELS: Final = ("5 us", "50 us", "500 us", "5 ms", "50 ms")
_GEMM: Final = "1.4 ms"
_AWAITED: Final = "each 45 us awaited"
_PAIRS_FOR_LANES: Final = (
    ("decode", "decode"),
    ("decode", _GEMM),
    ("decode", "5 ms"),
    ("20 us, gaps of 60", "20 us, gaps of 60"),
    ("20 us, gaps of 60", _GEMM),
    ("20 us, gaps of 200", _GEMM),
    (_AWAITED, _AWAITED),
    ("decode", _AWAITED),
)
"""Intermittent programs that turns slow down."""
_PAIRS: Final = (
    *_PAIRS_FOR_LANES,
    (_GEMM, _GEMM),
    ("1 ms", "5 ms"),
    ("20 us, gaps of 20", "20 us, gaps of 20"),
    ("20 us, gaps of 20", _GEMM),
    (_AWAITED, _GEMM),
    ("each 20 us awaited", "1 ms"),
    ("each 5 ms awaited", "1 ms"),
)
_MIXES: Final = (
    ((_GEMM, 20), ("1 ms", 30), ("decode", 50)),
    (("decode", 25),) * 4,
    ((_GEMM, 50), ("decode", 20), ("decode", 30)),
    ((_GEMM, 25), ("decode", 25), (_AWAITED, 25), ("20 us, gaps of 60", 25)),
)
_CAPPED_ALONE: Final = (
    "decode",
    _GEMM,
    "20 us, gaps of 20",
    _AWAITED,
    "each 5 ms awaited",
    "50 ms",
    "5 us",
)
_CAPPED: Final = (
    (Entry("decode", 20, Policy.CAPPED), Entry(_GEMM, 50, Policy.CAPPED)),
    (Entry("decode", 20, Policy.CAPPED), Entry(_GEMM, 80)),
    (Entry(_GEMM, 30, Policy.CAPPED), Entry("decode", 70)),
    (Entry(_AWAITED, 20, Policy.CAPPED), Entry(_GEMM, 80)),
    (Entry("5 us", 30, Policy.CAPPED), Entry("5 us", 70)),
)
_BESIDE_BACKGROUND: Final = (
    "bursts, pauses of 20 ms",
    "bursts, pauses of 100 ms",
    "decode, pauses of 20 ms",
    "decode, pauses of 50 ms",
    "decode",
    _AWAITED,
    "each 20 us awaited",
)
_CONTROL: Final = "policy turns"
_OTHER_SLICES_US: Final = (500, 10_000)


def _both(group: str, a: str, b: str) -> Iterator[Case]:
    """Yield the pair with each division of the GPU, in both directions."""
    for x, y in _SHARES:
        yield Case(group, (Entry(a, x), Entry(b, y)))
        if a != b and x != y:
            yield Case(group, (Entry(a, y), Entry(b, x)))


def _gpu_bound() -> Sequence[Case]:
    return [
        Case("GPU-bound", (Entry(a, x), Entry(b, y)))
        for (x, y), a, b in product(_SHARES, _KERNELS, _KERNELS)
    ]


def _pairs(pairs: Sequence[tuple[str, str]] = _PAIRS) -> Sequence[Case]:
    return [case for a, b in pairs for case in _both("pair", a, b)]


def _tasks() -> Iterator[tuple[Judge, Case]]:
    for case in (*_gpu_bound(), *_pairs()):
        yield fair, case
    for mix in _MIXES:
        yield fair, Case("mix", tuple(Entry(*each) for each in mix))
    for name, percent in product(_CAPPED_ALONE, (10, 30, 70)):
        yield capped, Case("capped", (Entry(name, percent, Policy.CAPPED),))
    for entries in _CAPPED:
        yield capped, Case("capped", entries)
    for name in _BESIDE_BACKGROUND:
        behind = Entry(_GEMM, 30, Policy.BACKGROUND)
        yield background, Case("background", (Entry(name, 70), behind))
    for case in disturbed.CASES:
        yield disturbed.judge, case


def shares(result: Result, seconds: int, quick: bool) -> None:
    """Judge all cases. quick: only some of them."""
    for row in rows(list(_tasks())[:: 8 if quick else 1], seconds):
        add(result, row)


def turns_control(result: Result, seconds: int, quick: bool) -> None:
    """Judge pairs with the policy `turns` for all. Pairs that saturate the GPU must keep their
    goals. All pairs that need lanes must miss theirs, or the benchmark measures nothing."""
    found = Result(())
    kept = 0
    tasks = [(fair, _with_turns(case)) for case in (*_gpu_bound(), *_pairs(_PAIRS_FOR_LANES))]
    for row in rows(tasks[:: 8 if quick else 1], seconds, (1,)):
        add(found, row)
        kept += "below_floor_most_points" in row.figures and "MISSED" not in row.cells[-1]
    error = found.figures["gpu_bound_error_most_points"]
    result.figures["turns_gpu_bound_error_most_points"] = error
    result.figures["turns_kept_rows"] = kept


def _with_turns(case: Case) -> Case:
    entries = tuple(replace(entry, policy=Policy.TURNS) for entry in case.entries)
    return replace(case, group=_CONTROL, entries=entries)


def other_slices(result: Result, seconds: int) -> None:
    """Judge the pairs with other time slices of the GPU."""
    for slice_us in _OTHER_SLICES_US:
        cases = [replace(case, slice_us=slice_us, tolerance=0.04) for case in _pairs()]
        for row in rows([(fair, each) for each in cases], seconds):
            add(result, replace(row, cells=(f"{slice_us} us, {row.cells[0]}", *row.cells[1:])))
