"""The recordings of traces/data, and their replays on a simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.support import GIB
from traces import host
from traces.replay import Outcome, Recording, Replay, load
from traces.trace import files
from traces.watch import Watch

Gpu: TypeAlias = Mapping[str, str]
"""The environment of programs on the simulated GPU."""
GPU_BYTES: Final = 17 * GIB
"""More memory than two recorded GPUs have. So the library refuses calls, and not the driver."""


@dataclass(frozen=True)
class Loaded:
    recording: Recording
    scripts: Path

    def replayed(self, directory: Path, gpu: Gpu, share: float = 1.0) -> Outcome:
        """Replay the recording. share: the limit, as a fraction of the recorded GPU's memory."""
        limit_bytes = int(self.recording.memory_bytes * share)
        directory.mkdir(exist_ok=True)
        with Watch(host.UUID, gpu) as watch:
            return Replay(self.recording, self.scripts, directory, limit_bytes, watch).run(gpu)


@pytest.fixture(scope="session")
def loaded(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """A function that returns the recording with the given letter. It reads each only once."""
    known: dict[str, Loaded] = {}

    def get(letter: str) -> Loaded:
        if letter not in known:
            scripts = tmp_path_factory.mktemp(letter)
            known[letter] = Loaded(load(files(letter), scripts), scripts)
        return known[letter]

    return get


@pytest.fixture(scope="session")
def gpu(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    with host.simulated(tmp_path_factory.mktemp("gpu"), GPU_BYTES) as environment:
        yield environment
