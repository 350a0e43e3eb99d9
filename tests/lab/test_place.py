"""A cluster's directory: which may be used, which process holds it, what is removed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.directory import MARK, Place
from lab.cluster.marked_directory import PlaceError


@pytest.fixture
def place() -> Iterator[Place]:
    """Its path must be short."""
    made = Place(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield made
    if made.directory.exists():
        made.directory.chmod(0o700)
        made.clear()


FOREIGN = {
    "owner-list.csv": lambda path: path.touch(),
    "cluster.log.old": lambda path: path.touch(),
    "gpuslice-lab-notes": lambda path: path.mkdir(),
    "owner": lambda path: path.mkdir(),
    "state.json": lambda path: path.symlink_to("/etc/hostname"),
    "gpuslice-lab-abcdefgh": lambda path: path.touch(),
}


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("marked", [True, False])
def test_names_like_a_clusters_do_not_make_it_one(
    place: Place, name: str, make: bool, marked: bool
) -> None:
    """The marker shows that we made the directory; its content is identified by whole names."""
    if marked:
        with place.changing():
            pass
    else:
        place.directory.mkdir(mode=0o700)
    own = place.directory / name
    FOREIGN[name](own)
    (place.directory / "thesis").mkdir()
    try:
        with pytest.raises(PlaceError, match="has other things in it"), place.changing(make=make):
            pass
        with pytest.raises(PlaceError, match="has other things in it"):
            place.clear()
        assert os.path.lexists(own)
        assert (place.directory / "thesis").is_dir()
    finally:
        shutil.rmtree(place.directory)


@pytest.mark.parametrize("spelling", ["/tmp/../tmp/{}", "/tmp/{}/.", "/tmp/{}/../{}", "{link}/{}"])
def test_one_directory_is_one_place_by_any_spelling(
    place: Place, tmp_path: Path, spelling: str
) -> None:
    link = tmp_path / "link"
    link.symlink_to("/tmp")
    name = place.directory.name
    with place.changing():
        other = Place(Path(spelling.replace("{link}", str(link)).replace("{}", name)))
    assert other.directory == place.directory


@pytest.mark.parametrize("where", ["/tmp/none/x", "/proc/x", "/dev/null/x"])
def test_where_no_directory_can_be_made_is_refused(where: str) -> None:
    place = Place(Path(where))
    with pytest.raises(PlaceError, match=f"{where} cannot be made: "), place.changing():
        pass
    assert not place.look().there


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("/tmp/f7é", "printable ASCII"),
        ("/tmp/a\nb", "printable ASCII"),
        ("/tmp/" + "é" * 7 + "a", "20 bytes"),
        ("/tmp/a-rather-long-name-of-31-c", r"31 bytes; .* at most 18"),
        ("circle/x", "circle"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused(
    where: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    with pytest.raises(PlaceError, match=why):
        Place(Path(where))


@pytest.mark.parametrize("make", ["mkdir --mode=755", "ln -s /tmp"])
def test_a_link_or_a_directory_that_others_may_enter_is_refused(place: Place, make: str) -> None:
    subprocess.run([*make.split(), str(place.directory)], check=True)
    try:
        with pytest.raises(PlaceError, match="not a directory of ours"), place.changing():
            pass
    finally:
        if place.directory.is_symlink():
            place.directory.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes it, another looks")
def test_another_user_that_looks_gets_an_error(place: Place) -> None:
    with place.changing():
        os.seteuid(65534)
        try:
            with pytest.raises(PlaceError, match="only root may look into"):
                place.look()
        finally:
            os.seteuid(0)


def test_an_emptied_place_is_no_cluster_and_takes_another(place: Place) -> None:
    with place.changing():
        place.log.touch()
        assert place.look().there
        place.empty()
        assert not place.look().there
        assert place.directory.is_dir()
        place.clear()
    assert not place.directory.exists()


def test_without_a_cluster_looking_creates_nothing(place: Place) -> None:
    seen = place.look()
    assert (seen.there, seen.owner, seen.well) == (False, None, False)
    with place.changing(make=False):
        assert not place.directory.exists()


def test_a_directory_with_leftovers_of_a_cluster_may_be_changed(place: Place) -> None:
    with place.changing():
        place.log.touch()
    with place.changing(make=False):
        place.clear()
    assert not place.directory.exists()


_OWNER = """
import sys, time
from pathlib import Path
from lab.cluster.directory import Place
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


def test_a_directory_has_one_owner_while_that_process_runs(place: Place) -> None:
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
            # A parent process that does not wait leaves a zombie, which has no environment.
            place.clear()
            assert owner.wait(10) < 0
            assert left.wait(10) < 0
            assert another.poll() is None
            another.kill()
    assert not place.directory.exists()


def test_a_process_that_waited_for_a_cleared_directory_makes_it_anew(place: Place) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom lab.cluster.directory import Place\n"
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
