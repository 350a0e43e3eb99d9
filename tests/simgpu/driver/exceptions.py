"""Differences between a generation of simgpu and the driver of its CUDA version, with reasons."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class KnownDifference(NamedTuple):
    versions: tuple[int, ...]
    question: re.Pattern[str]
    """A Difference's, as answers.py words it, in full."""
    reason: str


def _known(versions: tuple[int, ...], question: str, reason: str) -> KnownDifference:
    return KnownDifference(versions, re.compile(question), reason)


_CHECKED_FIRST: Final = (
    r"cuCtxDestroy(_v2)?|cuEventQuery|cuEventSynchronize|cuGraphInstantiateWithParams(_ptsz)?"
    r"|cuIpcGetMemHandle|cuLaunchKernelEx(_ptsz)?|cuMemMapArrayAsync(_ptsz)?"
    r"|cuStreamBeginCaptureToGraph(_ptsz)?|cuStreamEndCapture(_ptsz)?"
)

CUDA: Final = (
    _known(
        (11040,),
        rf"({_CHECKED_FIRST}) (zeros|pointers)",
        "NVIDIA's driver checks some arguments before it finds that there was no cuInit",
    ),
)

NVML: Final = (
    _known((11040,), r"errors 2[1-9]", "one libnvidia-ml, of driver 580, for all generations"),
)
