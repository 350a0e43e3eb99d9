"""Shared helpers of the policy's rows: shares of the GPU, and a row's words of refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tests.node.container_rows import CONTAINER_ROWS

from .conftest import GIB

HALF = 20 * GIB
QUARTER = 10 * GIB
OWN = Process(PYTHON_IMAGE)
NONE = f"{names.ENV_VISIBLE_DEVICES}={names.VISIBLE_DEVICES_NONE}\n"


def one(lab: Lab, size: int = HALF) -> Mapping[str, str]:
    """A pod's annotations, whose container "main" holds that much of the GPU."""
    return lab.share({"main": [(0, size, 50)]})


@contextmanager
def agent_with(lab: Lab, *options: str | Path) -> Iterator[None]:
    """The agent has these options in the block, and is stopped afterwards: the fixture `lab` starts
    it again."""
    lab.stop_agent()
    lab.start_agent(options=options)
    try:
        yield
    finally:
        lab.stop_agent()


@contextmanager
def refused(test: str) -> Iterator[None]:
    """Expect a refusal of the container "main" in the words of a row of that test."""
    with pytest.raises(CriError, match='gpuslice refuses container "main"') as refusal:
        yield
    rows = [row for row in CONTAINER_ROWS if row.test == test]
    assert any(row.matches(str(refusal.value)) for row in rows), refusal.value
