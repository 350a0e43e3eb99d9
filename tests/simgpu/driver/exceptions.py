"""Differences between a generation of simgpu and the driver of its CUDA version, with reasons."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class KnownDifference(NamedTuple):
    versions: tuple[int, ...]
    question: re.Pattern[str]
    """A Difference's, as compare.py words it, in full."""
    reason: str


_ONE_TABLE: Final = (
    "before_init.def is one table for all generations, and has the answer of driver 550"
)


def _known(versions: tuple[int, ...], question: str, reason: str) -> KnownDifference:
    return KnownDifference(versions, re.compile(question), reason)


CUDA: Final = (
    _known((11040,), "cuCtxDestroy(_v2)? zeros", _ONE_TABLE),
    _known((11040,), "cuStreamEndCapture(_ptsz)? zeros", _ONE_TABLE),
)

NVML: Final = (
    _known((11040,), r"errors 2[1-9]", "one libnvidia-ml, of driver 580, for all generations"),
)
