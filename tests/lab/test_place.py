"""Where a cluster is: whose directory it may be, who holds it, what is taken away."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu.lab.place import MARK, Place, PlaceError


@pytest.fixture
def place() -> Iterator[Place]:
    """Its path must be short."""
    made = Place(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield made
    if made.directory.exists():
        made.directory.chmod(0o700)
        made.clear()


def test_sockets_below_it_must_fit() -> None:
    with pytest.raises(PlaceError, match=r"31 characters; .* at most 18"):
        Place(Path("/tmp/a-rather-long-name-of-31-c"))


def test_nothing_is_there_and_looking_makes_nothing(place: Place) -> None:
    seen = place.look()
    assert (seen.there, seen.owner, seen.well) == (False, None, False)
    with place.changing(make=False):
        assert not place.directory.exists()


def test_a_directory_that_others_may_enter_is_refused(place: Place) -> None:
    place.directory.mkdir(mode=0o755)
    place.directory.chmod(0o755)
    with pytest.raises(PlaceError, match="not a directory of ours"), place.changing():
        pass


@pytest.mark.parametrize("make", [True, False])
def test_a_directory_with_something_else_in_it_is_refused_and_kept(
    place: Place, make: bool
) -> None:
    """It would be taken away with the cluster."""
    place.directory.mkdir(mode=0o700)
    own = place.directory / "letters"
    own.touch()
    with pytest.raises(PlaceError, match="has other things in it"), place.changing(make=make):
        pass
    assert own.exists()


def test_a_directory_of_which_a_cluster_has_left_a_part_may_be_changed(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    place.log.touch()
    with place.changing():
        place.clear()
    assert not place.directory.exists()


def test_a_link_is_refused(place: Place, tmp_path: Path) -> None:
    place.directory.symlink_to(tmp_path)
    try:
        with pytest.raises(PlaceError, match="not a directory of ours"), place.changing():
            pass
    finally:
        place.directory.unlink()


_OWNER = """
import sys, time
from pathlib import Path
from simgpu.lab.place import Place
place = Place(Path(sys.argv[1]))
place.own()
place.write({"ready": False})
print("owned", flush=True)
time.sleep(600)
"""


def _owned(place: Place) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(place.directory)],
        env={**os.environ, MARK: str(place.directory)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "owned\n"
    return owner


def test_an_owner_is_known_while_it_lives_and_is_alone(place: Place) -> None:
    with place.changing():
        with _owned(place) as owner:
            assert place.owner() == owner.pid
            with pytest.raises(PlaceError, match="has an owner already"):
                place.own()
            owner.kill()
        seen = place.look()
        assert (seen.there, seen.owner) == (True, None)
        assert seen.faults == ("the process that holds it has ended",)


def test_clearing_ends_the_owner_and_all_that_carries_the_mark(place: Place) -> None:
    with place.changing():
        marked = {**os.environ, MARK: str(place.directory)}
        with (
            _owned(place) as owner,
            subprocess.Popen(["sleep", "600"], env=marked) as left,
            subprocess.Popen(["sleep", "600"]) as another,
        ):
            # A parent of ours that does not wait leaves a zombie, which has no environment.
            place.clear()
            assert owner.wait(10) < 0
            assert left.wait(10) < 0
            assert another.poll() is None
            another.kill()
    assert not place.directory.exists()


def test_who_waited_for_a_cleared_directory_makes_it_anew(place: Place) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom simgpu.lab.place import Place\n"
        "place = Place(Path(sys.argv[1]))\n"
        "with place.changing():\n    print(place.directory.exists(), flush=True)\n"
    )
    with place.changing():
        waiting = subprocess.Popen(
            [sys.executable, "-c", script, str(place.directory)], stdout=subprocess.PIPE, text=True
        )
        locks = Path("/proc/locks")
        deadline = time.monotonic() + 60
        while f"-> FLOCK  ADVISORY  WRITE {waiting.pid} " not in locks.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        place.clear()
    with waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "True\n"
