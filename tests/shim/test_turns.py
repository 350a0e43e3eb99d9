"""At the limit processes and threads of a container take turns at what cannot be undone.

The card's own account is sampled while they do: it is never above the limit by more than one of
what they all want.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from contract import names, region_file
from shim import region
from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.exact import CODE

pytestmark = pytest.mark.sim

CONTEXT = 300 * MIB
PROCESSES: Final = 8
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_TURN: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, region_file.LOCK_TURN, 1, 0)

_BEFORE_A_CONTEXT = CODE.replace("use(0)\n", "", 1)
_GO = "print('ready', flush=True); import sys; sys.stdin.readline()\n"


def _control(host: Host, **request: object) -> Any:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(f"{host.sim_dir}/control.sock")
        daemon.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(daemon.makefile().readline())


def _held(host: Host) -> int:
    return int(_control(host, op="status")["cards"][0]["used_bytes"])


def _wait_for_an_empty_card(host: Host) -> None:
    """What others who just ended held may still be there."""
    deadline = time.monotonic() + 60
    while _held(host):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def _slow(host: Host, call: str, ns: int) -> Iterator[None]:
    assert _control(host, op="latency", card=0, call=call, ns=ns)["ok"]
    try:
        yield
    finally:
        assert _control(host, op="latency", card=0, call=call, ns=0)["ok"]


def _at_once(host: Host, directory: Path, program: str) -> tuple[list[str], int]:
    """What each of the processes says, and the most that the card held meanwhile."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=host.environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said, most = [], _held(host)
    for process in started:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        line = ""
        deadline = time.monotonic() + 120
        while not line and time.monotonic() < deadline:
            line = process.stdout.readline()
            most = max(most, _held(host))
        said.append(line.strip())
    for process in started:
        process.communicate(timeout=60)
        assert process.returncode == 0
    return said, most


def test_first_contexts_at_once_of_unknown_size(card_host: Host, grants: Grants) -> None:
    directory = grants.make(1000 * MIB)
    _wait_for_an_empty_card(card_host)
    with _slow(card_host, "cuDevicePrimaryCtxRetain", 30_000_000):
        said, most = _at_once(
            card_host,
            directory,
            _BEFORE_A_CONTEXT + _GO + "print(int(d.cuDevicePrimaryCtxRetain(0)[0]), flush=True)\n"
            "sys.stdin.read()",
        )
    assert sorted(said) == ["0"] * 3 + ["2"] * 5
    assert most <= 1000 * MIB + CONTEXT
    assert region.status(directory)[0].use.used_bytes == 3 * CONTEXT, "exactly what was given"


def test_first_launches_at_once(card_host: Host, grants: Grants) -> None:
    limit = PROCESSES * CONTEXT + 700 * MIB
    directory = grants.make(limit, context_bytes=CONTEXT)
    _wait_for_an_empty_card(card_host)
    with _slow(card_host, "cuFuncLoad", 30_000_000):
        said, most = _at_once(
            card_host,
            directory,
            CODE
            + "function = entry(load(300))\n"
            + _GO
            + "print(int(run(function)), flush=True)\nsys.stdin.read()",
        )
    assert sorted(said) == ["0"] * 3 + ["2"] * 5
    assert most <= limit + 200 * MIB


def test_threads_take_turns_too(card_host: Host, grants: Grants) -> None:
    card_host.python(
        CODE
        + """
import threading
functions = [entry(load(300)) for _ in range(8)]
codes = []
def work(function):
    use(0)
    codes.append(run(function))
threads = [threading.Thread(target=work, args=(function,)) for function in functions]
assert control(op="latency", card=0, call="cuFuncLoad", ns=30_000_000)["ok"]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert control(op="latency", card=0, call="cuFuncLoad", ns=0)["ok"]
assert sorted(int(code) for code in codes) == [0] * 3 + [2] * 5, codes
exact(CONTEXT + 900 * MIB)
""",
        grants.make(CONTEXT + 700 * MIB),
    )


@contextmanager
def _turn_held(directory: Path) -> Iterator[None]:
    """By somebody who never ends his."""
    region_fd = os.open(directory / names.FILE_REGION, os.O_RDWR)
    fcntl.fcntl(region_fd, _F_OFD_SETLK, _TURN)
    try:
        yield
    finally:
        os.close(region_fd)


def test_who_gets_no_turn_goes_ahead_where_there_is_room_for_the_most(
    card_host: Host, grants: Grants
) -> None:
    """Else it is refused: after a while, and not for ever."""
    wide, narrow = grants.make(2 * GIB, context_bytes=CONTEXT), grants.make(GIB)
    program = CODE + "function = entry(load(300))\n" + _GO + "print(int(run(function)))\nexact()"
    running = []
    for directory in (wide, narrow):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=card_host.environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with _turn_held(directory):
            said, _ = process.communicate("go\n", timeout=120)
        running.append((process.returncode, said))
    assert running == [(0, "0\n"), (0, "2\n")]


_KILLED_IN_A_TURN: Final = (
    CODE
    + f"""
import fcntl, struct, threading, time
function = entry(load(300))
def work():
    use(0)
    run(function)
threading.Thread(target=work, daemon=True).start()
region_fd = os.open(os.environ["GPUSLICE_DIR"] + "/{names.FILE_REGION}", os.O_RDWR)
def is_held():
    answer = fcntl.fcntl(region_fd, {_F_OFD_GETLK}, {_TURN!r})
    return struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK
while not is_held():
    time.sleep(0.001)
"""
)


def test_a_turn_ends_with_its_holder(card_host: Host, grants: Grants) -> None:
    """Killed in the midst of a load, he keeps nobody waiting."""
    directory = grants.make(3 * GIB)
    with _slow(card_host, "cuFuncLoad", 5_000_000_000):
        card_host.run(
            [sys.executable, "-c", _KILLED_IN_A_TURN + "os.kill(os.getpid(), 9)"],
            directory,
            status=-9,
        )
    card_host.python(CODE + "assert run(entry(load(300))) == OK\n", directory)


@pytest.mark.parametrize(("end", "status"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(0)", 0)])
def test_a_turn_ends_with_its_holder_whatever_children_he_leaves(
    card_host: Host, grants: Grants, end: str, status: int
) -> None:
    """Who gets no turn would be refused: 1 GiB more than the function's code does not fit."""
    directory = grants.make(GIB, context_bytes=CONTEXT)
    with _slow(card_host, "cuFuncLoad", 5_000_000_000):
        said = card_host.run(
            [
                sys.executable,
                "-c",
                _KILLED_IN_A_TURN
                + f"""
os.close(region_fd)
child = os.fork()
if not child:
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
{end}
""",
            ],
            directory,
            status=status,
        ).stdout
    try:
        card_host.python(CODE + "assert run(entry(load(300))) == OK\n", directory)
    finally:
        os.kill(int(said), signal.SIGKILL)


def test_a_turn_that_has_ended_is_not_kept_by_a_child_of_it(
    card_host: Host, grants: Grants
) -> None:
    card_host.python(
        CODE
        + """
import signal, threading
functions = [entry(load(200)) for _ in range(2)]
assert control(op="latency", card=0, call="cuFuncLoad", ns=300_000_000)["ok"]
codes, children = [], []
def work():
    use(0)
    codes.append(run(functions[0]))
thread = threading.Thread(target=work)
thread.start()
while thread.is_alive():
    child = os.fork()
    if not child:
        signal.pause()
    children.append(child)
    thread.join(0.03)
assert control(op="latency", card=0, call="cuFuncLoad", ns=0)["ok"]
codes.append(run(functions[1]))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
assert codes == [OK, OK] and children, codes
""",
        grants.make(GIB, context_bytes=CONTEXT),
    )
