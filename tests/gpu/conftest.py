"""A program on this machine's own card, with the library, a limit, and nothing simulated."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract import grant_file, names
from shim import region
from tests import sanitizers
from tests.gpu import facts
from tests.shim.conftest import GIB, Host

VARIABLE = "GPUSLICE_CARD"
ROOM_BYTES = GIB
"""What a program may take beside its context."""
_MOST_BYTES = 3 * GIB
_OURS = ("CUDA_DEVICE_", "GPUSLICE_", "LD_PRELOAD")


@dataclass(frozen=True)
class CardHost(Host):
    """This machine as it is: its own driver, found as programs find it, and one of its cards."""

    uuid: str = ""

    def environment(
        self, grant_dir: Path | None = None, *, preload: bool = True
    ) -> Mapping[str, str]:
        preloaded = sanitizers.preload(*([self.library] if preload else []))
        return {
            **machine(),
            "CUDA_VISIBLE_DEVICES": self.uuid,
            **({"LD_PRELOAD": preloaded} if preloaded else {}),
            **sanitizers.environment(),
            **({names.ENV_DIR: str(grant_dir)} if grant_dir else {}),
        }


@dataclass(frozen=True)
class Card:
    host: CardHost
    facts: facts.Facts
    grant_dir: Path
    record: Callable[[str, object], None]

    @property
    def limit_bytes(self) -> int:
        return region.status(self.grant_dir)[0].card.limit_bytes

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run it under the limit; what it prints as FIGURE is for the table."""
        done = self.host.python(program, self.grant_dir)
        self.note(done.stdout)
        return done

    def note(self, said: str) -> None:
        for line in said.splitlines():
            if line.startswith("FIGURE "):
                self.record("figure", line.removeprefix("FIGURE "))


def machine() -> Mapping[str, str]:
    """The environment without what would make the library's limits others than the test's."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}


@pytest.fixture(scope="session")
def this_card() -> facts.Facts:
    number = os.environ.get(VARIABLE)
    if number is None:
        pytest.skip("needs a card of its own: make gpu, where there is one")
    try:
        found = facts.of(int(number), machine())
    except facts.CardError as error:
        pytest.fail(str(error), pytrace=False)
    if found.free_bytes < _MOST_BYTES:
        pytest.skip(f"{found.uuid} has {found.free_bytes} bytes free; the rows take {_MOST_BYTES}")
    return found


@pytest.fixture
def card(
    this_card: facts.Facts,
    build_dir: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Card:
    library = build_dir / "lib" / "libvgpu.so"
    limit = ROOM_BYTES + this_card.context_bytes
    of_it = grant_file.Card(
        this_card.uuid, limit, 100, this_card.minor, context_bytes=this_card.context_bytes
    )
    directory = tmp_path / "grant"
    directory.mkdir()
    region.create(directory, [of_it])
    host = CardHost(library, Path(this_card.driver_dir), uuid=this_card.uuid)
    return Card(host, this_card, directory, record_property)
