"""A cluster's directory: which may be used, which process holds it, what is removed."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.directory import MARK, ClusterDirectory, DirectoryError


@pytest.fixture
def directory() -> Iterator[ClusterDirectory]:
    """Its path must be short."""
    made = ClusterDirectory(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield made
    if made.path.exists():
        made.path.chmod(0o700)
        made.clear()


FOREIGN = {
    "cluster.log.old": lambda path: path.touch(),
    "owner": lambda path: path.mkdir(),
    "state.json": lambda path: path.symlink_to("/etc/hostname"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("marked", [True, False])
def test_names_like_a_clusters_do_not_make_it_one(
    directory: ClusterDirectory, name: str, marked: bool
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
            directory.changing(),
        ):
            pass
        with pytest.raises(DirectoryError, match="--at: invalid value /"):
            directory.clear()
        assert os.path.lexists(own)
        assert (directory.path / "thesis").is_dir()
    finally:
        shutil.rmtree(directory.path)


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
