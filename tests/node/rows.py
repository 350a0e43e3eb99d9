"""Shared helpers of the policy's rows: shares of the GPU, and a row's words of refusal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from gpuslice.contract import names
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from tests.node.cases import CASES

from .conftest import GIB

HALF = 20 * GIB
QUARTER = 10 * GIB
OWN = Process(PYTHON_IMAGE)
NONE = f"{names.ENV_VISIBLE_DEVICES}={names.VISIBLE_DEVICES_NONE}\n"


def one(lab: Lab, size: int = HALF) -> Mapping[str, str]:
    """A pod's annotations, whose container "main" holds that much of the GPU."""
    return lab.share({"main": [(0, size, 50)]})


def two(lab: Lab) -> Mapping[str, str]:
    return lab.share({"main": [(0, HALF, 50)], "side": [(0, QUARTER, 25)]})


@contextmanager
def refused(name: str, container: str = "main") -> Iterator[None]:
    """The block is refused, in the words of the row."""
    (case,) = (case for case in CASES if case.name == name)
    with pytest.raises(CriError, match=f'gpuslice refuses container "{container}"') as refusal:
        yield
    fragments = re.findall("`([^`]+)`", case.sees)
    assert fragments
    for fragment in fragments:
        assert re.search(re.escape(fragment).replace(r"\.\.\.", ".*"), str(refusal.value))
