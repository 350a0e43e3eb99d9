"""enable-nri on a real containerd of private paths, whose NRI is off as it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.node import containerd_config
from lab.node.containerd_config import Options
from lab.node.namespace import Namespace
from nri_plugin.doctor import containerd
from nri_plugin.enable_nri.change import JOURNAL
from tests.support import ROOT, until
from tools import programs
from tools.releases import DEFAULT, RELEASES, Release

_RESTART = """\
#!/bin/sh
echo restarted >>{d}/restarts
kill -9 $(cat {d}/pid) 2>/dev/null
while test -e /proc/$(cat {d}/pid)/exe; do sleep 0.02; done
if test -e {d}/broken && test -e {d}/conf.d/gpuslice-nri.toml; then exit 1; fi
setsid {program} --config {d}/config.toml >>{d}/log 2>&1 &
echo $! >{d}/pid
"""


@dataclass
class Node:
    """The files of a host's containerd below one directory, and a command that restarts it."""

    directory: Path
    release: Release = DEFAULT

    def __post_init__(self) -> None:
        program = programs.ensure(release=self.release).containerd
        text = containerd_config.text(self.release, self.directory, Options())
        self.config.write_text(text.replace("disable = false", "disable = true"))
        script = _RESTART.format(d=self.directory, program=program)
        self.restart.write_text(script)
        self.restart.chmod(0o755)
        (self.directory / "pid").touch()

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    @property
    def restart(self) -> Path:
        return self.directory / "restart"

    @property
    def drop_in(self) -> Path:
        return self.directory / "conf.d/gpuslice-nri.toml"

    @property
    def restarts(self) -> int:
        """Since the start."""
        return len((self.directory / "restarts").read_text().split()) - 1

    @property
    def nri(self) -> bool:
        return containerd.inode(self.directory / "nri/nri.sock") is not None

    @property
    def serves(self) -> bool:
        return containerd.inode(self.directory / "c.sock") is not None

    def files(self) -> dict[str, bytes]:
        """Those of containerd's directory of configuration."""
        found = [self.config, self.drop_in, self.directory / JOURNAL]
        return {path.name: path.read_bytes() for path in found if path.exists()}

    def start(self) -> None:
        subprocess.run([self.restart], check=True)
        until(lambda: self.serves, "containerd serves")

    def stop(self) -> None:
        pid = (self.directory / "pid").read_text().strip()
        if pid:
            os.kill(int(pid), signal.SIGKILL)
            until(lambda: not Path(f"/proc/{pid}/exe").exists(), "containerd has exited")

    def command(self, *flags: str | Path) -> list[str]:
        common = ("--host-root", "/", "--containerd-config", self.config, "--timeout", "20")
        return ["enable-nri", *map(str, (*common, "--restart", self.restart, *flags))]

    def run(self, *flags: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nri_plugin", *self.command(*flags)]
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


@pytest.fixture
def node() -> Iterator[Node]:
    with running(DEFAULT) as node:
        yield node


@contextmanager
def running(release: Release) -> Iterator[Node]:
    """In a directory whose name is short enough for the sockets of containerd's shims."""
    with tempfile.TemporaryDirectory(prefix="nri-", dir="/tmp") as directory:
        node = Node(Path(directory), release)
        node.start()
        try:
            yield node
        finally:
            node.stop()


@pytest.mark.node
def test_on_then_nothing_to_do_then_undone(node: Node) -> None:
    """One short pass; its configuration has no imports line."""
    stock = node.files()
    assert not node.nri

    would = node.run("--dry-run")
    assert would.returncode == 0 and "disable = false" in would.stdout, would
    by_hand = node.run("--restart", "off")
    assert by_hand.returncode == 1 and "disable = false" in by_hand.stderr, by_hand
    assert (node.files(), node.restarts) == (stock, 0)

    done = node.run()
    assert done.returncode == 0 and "NRI is on now" in done.stdout, done
    assert node.nri and node.serves and node.restarts == 1
    config = tomllib.loads(node.config.read_text())
    assert config.pop("imports") == [f"{node.directory}/conf.d/*.toml"]
    assert config == tomllib.loads(stock[node.config.name].decode())

    again = node.run()
    assert again.returncode == 0 and "nothing was changed" in again.stdout, again
    assert node.restarts == 1

    undone = node.run("--undo")
    assert undone.returncode == 0, undone
    assert node.files() == stock and not node.drop_in.parent.exists()
    assert not node.nri and node.restarts == 2


@pytest.mark.node
def test_a_restart_that_fails_is_rolled_back_and_not_repeated(node: Node) -> None:
    stock = node.files()
    node.config.chmod(0o640)
    (node.directory / "broken").touch()
    failed = node.run()
    assert failed.returncode == 1, failed
    assert "exit status 1" in failed.stderr
    assert "containerd runs with its earlier configuration again" in failed.stderr
    assert node.serves and not node.nri and node.restarts == 2
    assert {**node.files(), JOURNAL: b""} == {**stock, JOURNAL: b""}
    assert node.config.stat().st_mode & 0o777 == 0o640

    # The kubelet restarts an init container that failed: containerd must stay as it is.
    repeated = node.run()
    assert repeated.returncode == 1 and "is not repeated" in repeated.stderr, repeated
    assert node.restarts == 2

    (node.directory / "broken").unlink()
    (node.directory / JOURNAL).unlink()
    assert node.run().returncode == 0 and node.nri


@pytest.mark.node
def test_sockets_that_do_not_come_back_are_rolled_back(node: Node) -> None:
    """The command succeeds, and containerd has NRI elsewhere."""
    stock = node.files()
    script = node.restart.read_text()
    node.restart.write_text(script.replace("setsid", f"test -e {node.directory}/conf.d || setsid"))
    failed = node.run("--timeout", "1")
    assert failed.returncode == 1 and "does not listen at" in failed.stderr, failed
    assert node.serves and not node.nri
    assert {**node.files(), JOURNAL: b""} == {**stock, JOURNAL: b""}


@pytest.mark.node
def test_a_configuration_that_containerd_rejects_is_not_tried(node: Node) -> None:
    """Another drop-in would break it: no restart."""
    other = node.directory / "conf.d/other.toml"
    other.parent.mkdir()
    other.write_text("version = 3\n[plugins\n")
    stock = node.files()
    failed = node.run()
    assert failed.returncode == 1 and "containerd was not restarted" in failed.stderr, failed
    assert {**node.files(), JOURNAL: b""} == {**stock, JOURNAL: b""}
    assert node.restarts == 0 and other.exists()


@pytest.mark.node
def test_what_else_a_drop_in_changes_is_not_brought_along(node: Node) -> None:
    other = node.directory / "conf.d/other.toml"
    other.parent.mkdir()
    other.write_text("version = 3\noom_score = -900\n")
    failed = node.run()
    assert failed.returncode == 1 and "oom_score" in failed.stderr, failed
    assert node.restarts == 0


@pytest.mark.node
def test_of_two_at_once_the_second_changes_nothing(node: Node) -> None:
    """The second changes nothing, and says why."""
    node.restart.write_text(node.restart.read_text().replace("kill -9", "sleep 1; kill -9", 1))
    command = [sys.executable, "-m", "nri_plugin", *node.command()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        until(lambda: node.restarts == 1, "the first restarts containerd")
        second = node.run()
        assert second.returncode == 1 and "another process" in second.stderr, second
        assert first.wait() == 0
    assert node.nri and node.restarts == 1


_KILLED = """import os, pathlib, signal, subprocess, sys
left = [int(sys.argv.pop(1))]
def killing(real):
    def call(*arguments, **options):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return real(*arguments, **options)
    return call
pathlib.Path.rename = killing(pathlib.Path.rename)
pathlib.Path.unlink = killing(pathlib.Path.unlink)
pathlib.Path.rmdir = killing(pathlib.Path.rmdir)
os.fsync = killing(os.fsync)
subprocess.run = killing(subprocess.run)
sys.path.insert(0, {root!r})
from nri_plugin.__main__ import main
sys.exit(main())
"""


def killed(node: Node, calls: int) -> bool:
    """Run it, killed before that call that changes something; False: it ended before."""
    program = [sys.executable, "-c", _KILLED.format(root=str(ROOT)), str(calls)]
    done = subprocess.run([*program, *node.command()], cwd=ROOT, capture_output=True, check=False)
    return done.returncode == -signal.SIGKILL


@pytest.mark.node
@pytest.mark.parametrize("breaks", [False, True])
def test_killed_at_every_step(node: Node, breaks: bool) -> None:
    """After each, the next run turns NRI on or rolls back; and what it made can be undone."""
    stock = node.files()
    for number in range(0, 99, 3 if breaks else 1):
        if breaks:
            (node.directory / "broken").touch()
        if not killed(node, number):
            break
        repaired = node.run()
        assert node.serves, (number, repaired)
        if not breaks:
            assert repaired.returncode == 0 and node.nri, (number, repaired)
            assert node.run("--undo").returncode == 0
        else:
            assert repaired.returncode == 1, (number, repaired)
            (node.directory / JOURNAL).unlink()
        assert node.files() == stock, (number, repaired)
    assert number > 10, "it was killed at each call"


@pytest.mark.node
@pytest.mark.parametrize("name", ["1.7", "2.2"])
def test_other_releases(name: str) -> None:
    """1.7 replaces NRI's table by the drop-in's: what the operator set there stays."""
    with running(RELEASES[name]) as node:
        stock = node.files()
        done = node.run()
        assert done.returncode == 0 and node.nri, done
        assert node.run("--undo").returncode == 0
        assert node.files() == stock


@pytest.mark.node
def test_as_in_an_init_container() -> None:
    """The host's root is at another place, and its programs run in the namespaces of process 1."""
    namespace = Namespace()
    try:
        node = Node(namespace.directory)
        assert namespace.run([node.restart]).returncode == 0
        until(lambda: node.serves, "containerd serves")
        root = node.directory / "host"
        root.mkdir()
        inner = [sys.executable, "-m", "nri_plugin", *node.command("--host-root", root)]
        script = 'mount --rbind / "$0" && exec "$@"'
        outer: list[str | Path] = [
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            script,
            root,
        ]
        done = namespace.run([*outer, *inner])
        assert done.returncode == 0 and node.nri, done
        assert node.drop_in.exists()
    finally:
        namespace.close()
