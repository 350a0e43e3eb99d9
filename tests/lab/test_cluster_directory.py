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

from lab.cluster.directory import MARK, ClusterDirectory
from lab.cluster.marked_directory import DirectoryError


@pytest.fixture
def directory() -> Iterator[ClusterDirectory]:
    """Its path must be short."""
    made = ClusterDirectory(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield made
    if made.path.exists():
        made.path.chmod(0o700)
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
    directory: ClusterDirectory, name: str, make: bool, marked: bool
) -> None:
    """The marker shows that we made the directory; its content is identified by whole names."""
    if marked:
        with directory.changing():
            pass
    else:
        directory.path.mkdir(mode=0o700)
    own = directory.path / name
    FOREIGN[name](own)
    (directory.path / "thesis").mkdir()
    try:
        with (
            pytest.raises(DirectoryError, match="--at: invalid value /"),
            directory.changing(make=make),
        ):
            pass
        with pytest.raises(DirectoryError, match="--at: invalid value /"):
            directory.clear()
        assert os.path.lexists(own)
        assert (directory.path / "thesis").is_dir()
    finally:
        shutil.rmtree(directory.path)


@pytest.mark.parametrize("spelling", ["/tmp/../tmp/{}", "/tmp/{}/.", "/tmp/{}/../{}", "{link}/{}"])
def test_every_spelling_of_a_path_is_one_directory(
    directory: ClusterDirectory, tmp_path: Path, spelling: str
) -> None:
    link = tmp_path / "link"
    link.symlink_to("/tmp")
    name = directory.path.name
    with directory.changing():
        other = ClusterDirectory(Path(spelling.replace("{link}", str(link)).replace("{}", name)))
    assert other.path == directory.path


@pytest.mark.parametrize("where", ["/tmp/none/x", "/proc/x", "/dev/null/x"])
def test_where_no_directory_can_be_made_is_refused(where: str) -> None:
    directory = ClusterDirectory(Path(where))
    with pytest.raises(DirectoryError, match=f"{where} cannot be made: "), directory.changing():
        pass
    assert not directory.read_status().exists


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
    with pytest.raises(DirectoryError, match=why):
        ClusterDirectory(Path(where))


@pytest.mark.parametrize("make", ["mkdir --mode=755", "ln -s /tmp"])
def test_a_link_or_a_directory_that_others_may_enter_is_refused(
    directory: ClusterDirectory, make: str
) -> None:
    subprocess.run([*make.split(), str(directory.path)], check=True)
    try:
        with pytest.raises(DirectoryError, match="not a directory of ours"), directory.changing():
            pass
    finally:
        if directory.path.is_symlink():
            directory.path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes it, another user reads it")
def test_another_user_cannot_read_the_status(directory: ClusterDirectory) -> None:
    with directory.changing():
        os.seteuid(65534)
        try:
            with pytest.raises(DirectoryError, match="only root may look into"):
                directory.read_status()
        finally:
            os.seteuid(0)


def test_an_emptied_directory_has_no_cluster_and_may_get_another(
    directory: ClusterDirectory,
) -> None:
    with directory.changing():
        directory.log.touch()
        assert directory.read_status().exists
        directory.empty()
        assert not directory.read_status().exists
        assert directory.path.is_dir()
        directory.clear()
    assert not directory.path.exists()


def test_without_a_cluster_reading_the_status_creates_nothing(directory: ClusterDirectory) -> None:
    status = directory.read_status()
    assert (status.exists, status.owner, status.is_healthy) == (False, None, False)
    with directory.changing(make=False):
        assert not directory.path.exists()


def test_a_directory_with_leftovers_of_a_cluster_may_be_changed(
    directory: ClusterDirectory,
) -> None:
    with directory.changing():
        directory.log.touch()
    with directory.changing(make=False):
        directory.clear()
    assert not directory.path.exists()


_OWNER = """
import sys, time
from pathlib import Path
from lab.cluster.directory import ClusterDirectory
directory = ClusterDirectory(Path(sys.argv[1]))
directory.own()
directory.write({"ready": False})
print("owned", flush=True)
time.sleep(600)
"""


def _owned(directory: ClusterDirectory) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(directory.path)],
        env={**os.environ, MARK: str(directory.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "owned\n"
    return owner


def test_a_directory_has_one_owner_while_that_process_runs(directory: ClusterDirectory) -> None:
    with directory.changing():
        with _owned(directory) as owner:
            assert directory.owner() == owner.pid
            with pytest.raises(DirectoryError, match="has an owner already"):
                directory.own()
            owner.kill()
        status = directory.read_status()
        assert (status.exists, status.owner) == (True, None)
        assert status.problems == ("the process that holds it has ended",)


def test_clearing_ends_the_owner_and_all_that_carries_the_mark(directory: ClusterDirectory) -> None:
    with directory.changing():
        marked = {**os.environ, MARK: str(directory.path)}
        with (
            _owned(directory) as owner,
            subprocess.Popen(["sleep", "600"], env=marked) as left,
            subprocess.Popen(["sleep", "600"]) as another,
        ):
            # A parent process that does not wait leaves a zombie, which has no environment.
            directory.clear()
            assert owner.wait(10) < 0
            assert left.wait(10) < 0
            assert another.poll() is None
            another.kill()
    assert not directory.path.exists()


def test_a_process_that_waited_for_a_cleared_directory_recreates_it(
    directory: ClusterDirectory,
) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom lab.cluster.directory import ClusterDirectory\n"
        "directory = ClusterDirectory(Path(sys.argv[1]))\n"
        "with directory.changing():\n    print(directory.path.exists(), flush=True)\n"
    )
    with directory.changing():
        waiting = subprocess.Popen(
            [sys.executable, "-c", script, str(directory.path)], stdout=subprocess.PIPE, text=True
        )
        locks = Path("/proc/locks")
        deadline = time.monotonic() + 60
        while f"-> FLOCK  ADVISORY  WRITE {waiting.pid} " not in locks.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        directory.clear()
    with waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "True\n"
