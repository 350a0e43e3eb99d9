"""The recordings of traces/data, and a simulated GPU to replay them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support import GIB
from traces import host
from traces.replay import Recording, load
from traces.trace import files

GPU_BYTES: Final = 17 * GIB
"""Two recorded GPUs, and more, so that the library must refuse and not the simulated GPU."""


@dataclass(frozen=True)
class Loaded:
    recording: Recording
    scripts: Path


@pytest.fixture(scope="session")
def loaded(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """The recording of that letter; each is read once."""
    known: dict[str, Loaded] = {}

    def get(letter: str) -> Loaded:
        if letter not in known:
            scripts = tmp_path_factory.mktemp(letter)
            known[letter] = Loaded(load(files(letter), scripts), scripts)
        return known[letter]

    return get


@pytest.fixture(scope="session")
def gpu(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The environment of programs on the simulated GPU."""
    with host.simulated(tmp_path_factory.mktemp("gpu"), GPU_BYTES) as environment:
        yield environment
