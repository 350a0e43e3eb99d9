"""`make cluster`: its GPUs, dialects and directory, the process that holds it, and its removal.

A supervised program ends when its owner process ends, or before.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.__main__ import CommandError, dialects, gpus
from lab.cluster.directory import MARK, ClusterDirectory, DirectoryError
from lab.cluster.product import values
from lab.cluster.supervised import Process
from tests.support import until


def test_gpus_are_a_count_and_a_size() -> None:
    assert gpus("2x23040Mi") == [23040 << 20] * 2
    assert gpus("40Gi") == [40 << 30]
    assert gpus("1x80GiB,2x40Gi") == [80 << 30, 40 << 30, 40 << 30]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be COUNTxSIZE"),
        ("2x40Gi,", "must be COUNTxSIZE"),
        ("0x40Gi", "at least one"),
        ("1x1", "a positive multiple"),
        ("60x1Gi,5x1Gi", "GPUs: must be 1 to 64"),
    ],
)
def test_other_texts_for_gpus_are_refused_with_the_expected_form(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        gpus(text)


def test_dialects_are_values_of_the_chart() -> None:
    chosen = values("https://198.18.1.1:6443", Path("/c"), Path("/g"), [], ["kai", "hami"])
    assert chosen["global"] == {"gpuSharing": True}
    assert chosen["dialects"] == {"hami": {"enabled": True}}
    assert not {"global", "dialects"} & values("https://h", Path("/c"), Path("/g"), []).keys()


def test_an_unknown_dialect_is_refused_with_the_choices() -> None:
    assert dialects("") == []
    assert dialects("kai,volcano") == ["kai", "volcano"]
    refusal = "--dialects: invalid value 'kia': must be some of kai, volcano, hami"
    with pytest.raises(CommandError, match=refusal):
        dialects("kai,kia")


# --- the directory


@pytest.fixture
def directory() -> Iterator[ClusterDirectory]:
    """Yield a directory with a short path, because the path of a socket is limited."""
    made = ClusterDirectory(Path(f"/tmp/gs-{secrets.token_hex(4)}"))
    yield made
    if made.path.is_symlink():
        made.path.unlink()
    shutil.rmtree(made.path, ignore_errors=True)


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
    """Only a directory with our marker is a cluster's. In it only files of known names are ours."""
    if marked:
        with directory.changing():
            pass
    else:
        directory.path.mkdir(mode=0o700)
    own = directory.path / name
    FOREIGN[name](own)
    (directory.path / "thesis").mkdir()
    refusal = "--at: invalid value /"
    with pytest.raises(DirectoryError, match=refusal), directory.changing():
        pass
    with pytest.raises(DirectoryError, match=refusal):
        directory.clear()
    assert os.path.lexists(own)
    assert (directory.path / "thesis").is_dir()


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
    with (
        pytest.raises(DirectoryError, match="must be a directory of this user"),
        directory.changing(),
    ):
        pass


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
            # Killed children are zombies until `wait`, and a zombie has no environment.
            directory.clear()
            assert owner.wait(10) < 0
            assert left.wait(10) < 0
            assert another.poll() is None
            another.kill()
    assert not directory.path.exists()


# --- programs


def is_running(pid: int) -> bool:
    """Return whether the process runs. A zombie has exited, but may wait long to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_one_that_ignores_the_signal_or_is_stopped_ends_too(tmp_path: Path) -> None:
    ignoring = Process(["bash", "-c", "trap '' TERM; echo up; sleep 600"], tmp_path / "log")
    until(lambda: ignoring.log_tail() == "up\n", "it runs")
    ignoring.stop(within_s=0.1)
    stopped = Process(["sleep", "600"], tmp_path / "other")
    stopped.send(signal.SIGSTOP)
    stopped.kill()
    assert not is_running(ignoring.pid) and not is_running(stopped.pid)


_OWNER_OF_A_PROGRAM = """
import sys, time
from pathlib import Path
from lab.cluster.supervised import Process
print(Process(["sleep", "600"], Path(sys.argv[1]), hostname=sys.argv[2]).pid, flush=True)
while True:  # a signal just before a long sleep would be handled at the end of the sleep
    time.sleep(0.1)
"""


@pytest.mark.parametrize("hostname", ["", "pod-1"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_with_its_owner(
    tmp_path: Path, number: signal.Signals, hostname: str
) -> None:
    command = [sys.executable, "-c", _OWNER_OF_A_PROGRAM, str(tmp_path / "log"), hostname]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        program = int(owner.stdout.readline())
        owner.send_signal(number)
    until(lambda: not is_running(program), "it has ended")
