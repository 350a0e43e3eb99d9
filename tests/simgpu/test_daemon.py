"""The daemon with real clients: one pool of memory, exits of every kind, hostile bytes, faults."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
from pathlib import Path

import pytest

from simgpu import wire
from simgpu.wire import Op, Role
from tests.simgpu.host import GIB, PLAIN, Host, simgpu
from tests.support import until

TOTAL = 40 * GIB


def test_a_killed_process_gives_everything_back(host: Host) -> None:
    """Its memory is freed even if a child of the process is alive and keeps the socket open."""
    watcher = host.connect(0, Role.NVML)
    child, lines = host.peer(f"alloc={GIB}", f"alloc={GIB}", "fork")
    assert watcher.free_bytes() == TOTAL - 2 * GIB
    try:
        child.kill()
        until(lambda: watcher.free_bytes() == TOTAL, "what it held")
        assert watcher.processes() == {}
        os.kill(int(lines[0]), 0)
    finally:
        os.kill(int(lines[0]), signal.SIGKILL)


HOSTILE = {
    "nothing": b"",
    "half a head": b"\x01\x00\x00",
    "operation unknown": struct.pack("<II", 99, 0),
    "length absurd": b"\xff" * 8,
    "payload short": struct.pack("<II", Op.HELLO, 8) + b"\x01",
    "payload of another size": struct.pack("<II", Op.HELLO, 0),
    "no greeting": struct.pack("<II", Op.MEMORY_INFO, 0),
    "protocol of the future": wire.Request(Op.HELLO, (wire.PROTOCOL + 1, Role.CUDA, 0)).encode(),
    "role unknown": wire.Request(Op.HELLO, (wire.PROTOCOL, 9, 0)).encode(),
    "clock ahead": wire.Request(Op.HELLO, (wire.PROTOCOL, Role.CUDA, 2**63)).encode(),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": bytes(range(256)) * 512,
}


def test_hostile_bytes_end_their_own_connection_only(host: Host) -> None:
    good = host.connect(0)
    context = good.make(Op.CONTEXT_CREATE)
    for name, data in HOSTILE.items():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bad:
            bad.settimeout(30)
            bad.connect(str(host.socket(0)))
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                bad.sendall(data)
                bad.shutdown(socket.SHUT_WR)
                assert bad.recv(1) == b"", name
        good.make(Op.MEMORY_ALLOC, context, GIB)


def test_one_process_may_not_take_every_descriptor(host: Host) -> None:
    peers = [host.connect(0) for _ in range(64)]
    with pytest.raises((ConnectionError, BrokenPipeError)):
        host.connect(0)
    peers.pop().close()
    child, _ = host.peer()
    assert child.poll() is None


def test_permissions_to_connect(host: Host) -> None:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in host.directory.rglob("*.sock")}
    assert modes == {
        host.socket(0): 0o666,
        host.socket(1): 0o666,
        host.directory / "control.sock": 0o600,
    }


def test_up_twice_is_up_once(host: Host) -> None:
    pid = (host.directory / "pid").read_text()
    again = simgpu("up", "--dir", host.directory, "--config", PLAIN)
    assert again.returncode == 0, again.stderr
    assert (host.directory / "pid").read_text() == pid
    for options, refusal in (
        (["--gpu", "1GiB"], "is up with other GPUs"),
        (["--foreground", "--config", PLAIN], "a daemon runs here already"),
    ):
        refused = simgpu("up", "--dir", host.directory, *options)
        assert refused.returncode == 1
        assert refusal in refused.stderr


def test_down_leaves_what_is_not_its_own(sim_dir: Path) -> None:
    sim_dir.mkdir()
    (sim_dir / "mine").touch()
    for command in ("up", "down"):
        assert simgpu(command, "--dir", sim_dir).returncode == 0
    assert [path.name for path in sim_dir.iterdir()] == ["mine"]


def test_a_killed_daemon_is_followed_by_a_new_one_or_cleaned_up(host: Host) -> None:
    def is_down() -> bool:
        return "not up in" in simgpu("status", "--dir", host.directory).stderr

    def kill() -> None:
        os.kill(int((host.directory / "pid").read_text()), signal.SIGKILL)
        until(is_down, "it has exited")

    kill()
    host.up()
    assert host.connect(0).free_bytes() == TOTAL
    kill()
    assert host.socket(0).exists()
    host.down()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "many"], "--gpu: invalid value 'many': must be a quantity"),
        (["--config", "absent.toml"], "absent.toml: No such file"),
    ],
)
def test_a_wrong_command_is_refused_with_the_reason(
    sim_dir: Path, arguments: list[str], message: str
) -> None:
    done = simgpu("up", "--dir", sim_dir, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert not sim_dir.exists()


def test_status_prints_what_is_used(host: Host) -> None:
    host.peer(f"alloc={10 * GIB}")
    host.fault("lose", gpu=1)
    done = simgpu("status", "--dir", host.directory)
    assert "10Gi of 40Gi used  1 clients" in done.stdout
    assert "LOST" in done.stdout
