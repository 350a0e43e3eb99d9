"""The process that listens at a socket, and its version; this test's own process is the
listener."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.doctor import containerd
from nri_plugin.doctor.facts import Socket


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "nri.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        yield path
        with pytest.raises(BlockingIOError):
            server.accept()  # no client has connected


def test_a_listener_is_found_without_connecting(listening: Path) -> None:
    assert containerd.inspect_socket(listening) == Socket(True, True)
    by_a_link = listening.parent / "link"
    by_a_link.symlink_to(listening.parent)
    assert containerd.inspect_socket(by_a_link / listening.name) == Socket(True, True)


def test_the_version_of_a_listener_is_found(listening: Path) -> None:
    """It is Python, for which there is no known configuration."""
    found = containerd.inspect_runtime([Path("/absent"), listening], None)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "python" in (found.name or "")
    assert found.problem == f"the configuration of {found.name} is not examined"
    assert found.config is None


def test_where_nothing_listens_the_file_is_read(tmp_path: Path) -> None:
    path, config = tmp_path / "nri.sock", tmp_path / "config.toml"
    assert containerd.inspect_socket(path) == Socket(False, False)
    assert containerd.inspect_runtime([path], config).config is None
    config.write_text("version = 3\n")
    found = containerd.inspect_runtime([path], config)
    assert found.config == {"version": 3}
    assert found.problem == f"no process is seen that listens at {path}"


def test_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = containerd.inspect_socket(tmp_path / "file")
    assert found.problem == f"{tmp_path / 'file'} is not a socket"
    assert containerd.inspect_socket(tmp_path / "file" / "below").problem is not None


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (["containerd"], "/etc/containerd/config.toml"),
        (["containerd", "-c", "/a.toml", "--log-level=debug"], "/a.toml"),
        (["containerd", "--config=/b.toml"], "/b.toml"),
        (["containerd", "--address", "/s", "--config", "/c.toml"], "/c.toml"),
        (["containerd", "--config"], "/etc/containerd/config.toml"),
    ],
)
def test_the_configuration_that_a_command_line_names(argv: list[str], file: str) -> None:
    assert containerd.config_of(argv) == file
