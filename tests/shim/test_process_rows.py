"""Processes as in containers: many, forking, executing, twice the same library, reused pids. One
line of the matrix of behaviours each, through the driver's calls or the core alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.contract import grant_file
from shim import region
from tests.shim.clients import CUDA
from tests.shim.conftest import GIB, MIB, NULL_GPU, Grants, Host, set_limit
from tests.shim.region.core import Box
from tests.support import until
from tests.talking import TALKER, Talk, talking

pytestmark = pytest.mark.sim


@pytest.fixture
def null_box(tmp_path: Path, build_dir: Path) -> Box:
    """A grant of the null driver's GPU; its slots can be read."""
    region.create(tmp_path, [grant_file.Gpu(NULL_GPU, 1 << 30, 100, 0)])
    return Box(tmp_path, build_dir / "bin" / "vgpu-core-test")


@contextmanager
def _two_copies(host: Host, box: Box, build_dir: Path) -> Iterator[Talk]:
    command: list[str | Path] = [
        build_dir / "bin" / "vgpu-two-copies",
        host.driver_dir / "libcuda.so.1",
        host.library,
    ]
    with talking(command, host.environment(box.directory, preload=False)) as talk:
        yield talk


def _charges(box: Box) -> list[int]:
    return sorted(slot.bytes[0] // MIB for slot in box.slots() if slot.state)


def test_two_copies_of_the_library_in_one_process_are_two_holders(
    null_host: Host, null_box: Box, build_dir: Path
) -> None:
    with _two_copies(null_host, null_box, build_dir) as talk:
        (first, second) = (slot for slot in null_box.slots() if slot.state)
        assert (first.pid, first.start_ticks) == (second.pid, second.start_ticks)
        charges = _charges(null_box)
        assert sum(charges) == null_box.use().used_bytes // MIB
        assert charges[0] >= 3 and charges[1] >= 5
        assert null_box.used_seen_afresh() // MIB == sum(charges), "both live"
        assert talk.ask("free 0") == "done"
        assert _charges(null_box)[1] == charges[1], "neither loses its charge"
        assert talk.ask("alloc 0") == "done"
        assert _charges(null_box) == charges
    assert null_box.used_seen_afresh() == 0


def test_exec_ends_the_charge_of_both_copies(
    null_host: Host, null_box: Box, build_dir: Path
) -> None:
    with _two_copies(null_host, null_box, build_dir) as talk:
        talk.send("exec")
        until(lambda: talk.comm == "sleep", "exec")
        assert null_box.used_seen_afresh() == 0


@contextmanager
def _talker(host: Host, directory: Path) -> Iterator[Talk]:
    with talking(TALKER, host.environment(directory)) as talk:
        yield talk


def _free(talk: Talk) -> int:
    code, free, _ = map(int, talk.ask("info").split())
    assert code == 0
    return free


def test_row_19_a_killed_holders_memory_is_there_for_the_next(
    slow_host: Host, grants: Grants
) -> None:
    """The GPU's teardown ends a while after the exit; the next allocation waits for it."""
    directory = grants.make(GIB)
    with _talker(slow_host, directory) as survivor, _talker(slow_host, directory) as holder:
        free_bytes = _free(survivor)
        assert holder.ask(f"alloc {free_bytes}").startswith("0 ")
        assert survivor.ask(f"alloc {free_bytes}") == "2"
        holder.kill()
        began = time.monotonic()
        assert survivor.ask(f"alloc {free_bytes}").startswith("0 ")
        assert time.monotonic() - began < 20, "a second, and what a busy machine adds"


def test_row_19_a_killed_holders_memory_is_found_without_a_descriptor(
    host: Host, grants: Grants
) -> None:
    """Testing a held lock takes a descriptor; testing that a pid is free takes none."""
    directory = grants.make(GIB)
    with talking(TALKER, host.environment(directory)) as holder:
        assert holder.ask(f"alloc {800 * MIB}") == "0 0"
        poor = """
import os, resource, sys
print("ready", flush=True)
sys.stdin.readline()
must(d.cuMemAlloc(100 * MIB))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
assert d.cuMemAlloc(500 * MIB)[0] == OOM
print("full", flush=True)
sys.stdin.readline()
print(d.cuMemAlloc(500 * MIB)[0].name, flush=True)
"""
        with talking([sys.executable, "-c", CUDA + poor], host.environment(directory)) as other:
            assert other.ask("go") == "full"
            holder.kill()
            assert other.ask("go") == "CUDA_SUCCESS"


def test_row_19_reports_omit_exited_processes_without_any_pressure(
    slow_host: Host, grants: Grants
) -> None:
    directory = grants.make(GIB)
    with _talker(slow_host, directory) as survivor, _talker(slow_host, directory) as holder:
        before = _free(survivor)
        assert holder.ask(f"alloc {200 * MIB}").startswith("0 ")
        assert _free(survivor) == before - 200 * MIB
        holder.kill()
        until(lambda: _free(survivor) >= before, "the killed process's bytes in a report")


def test_row_20_ended_processes_disturb_no_other(null_host: Host, null_box: Box) -> None:
    """A, B, C run; A and B end; D starts and takes one of their slots; C allocates."""
    with (
        _talker(null_host, null_box.directory) as a_process,
        _talker(null_host, null_box.directory) as b_process,
        _talker(null_host, null_box.directory) as c_process,
    ):
        for talk in (a_process, b_process, c_process):
            assert talk.ask(f"alloc {100 * MIB}").startswith("0 ")
        a_process.end("exit")
        b_process.end("exit")
        with _talker(null_host, null_box.directory) as d_process:
            assert d_process.ask(f"alloc {400 * MIB}").startswith("0 ")
            assert c_process.ask(f"alloc {600 * MIB}") == "2"
            assert c_process.ask(f"alloc {GIB - 500 * MIB}").startswith("0 ")
            assert null_box.use().used_bytes == GIB
            assert d_process.ask(f"alloc {2 * MIB}") == "2"


_FORKS = """
import ctypes, os, subprocess, sys

cuda = ctypes.CDLL("libcuda.so.1")


def begin():
    context = ctypes.c_void_p()
    return [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
    ]


def alloc(mib):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20))


def say(word):
    print(word, flush=True)


def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def works():
    assert begin() == [0, 0, 0] and alloc(10) == 0


def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    works()
    say(f"daemon {os.getpid()}")
    sys.stdin.readline()


child(works)
say("forked before init")
works()
assert alloc(90) == 0
child(lambda: None)
child(works)
say("forked after init")
subprocess.run(["true"], check=True, close_fds=False)
assert os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)[1] == 0
assert os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", "import ctypes;" \
    "assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"], os.environ), 0)[1] == 0
say("spawned")
if not os.fork():
    daemon()
    os._exit(0)
assert alloc(6) == 0
sys.stdin.readline()
"""


def test_row_23_fork_vfork_spawn_and_daemon(null_host: Host, null_box: Box) -> None:
    """Each child is charged for itself, and the parent's charge remains."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        env=null_host.environment(null_box.directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        talk = Talk(running)
        assert talk.answer() == "forked before init"
        assert talk.answer() == "forked after init"
        assert null_box.used_seen_afresh() == 100 * MIB
        assert talk.answer() == "spawned"
        assert null_box.used_seen_afresh() >= 100 * MIB
        daemon = int(talk.answer().removeprefix("daemon "))
        until(lambda: null_box.used_seen_afresh() == 116 * MIB, "the daemon's own charge")
        assert {slot.pid for slot in null_box.slots() if slot.bytes[0]} == {running.pid, daemon}
        talk.kill()
        until(lambda: null_box.used_seen_afresh() == 10 * MIB, "the parent's end")
        assert running.stdin is not None
        running.stdin.close()
        until(lambda: null_box.used_seen_afresh() == 0, "the daemon's end")


def test_row_24_eleven_hundred_processes(box: Box) -> None:
    """Processes continue up to the number of slots. The others are refused."""
    assert box.run("many", "1100").split() == ["512", "588", "512000", "0"]


@pytest.mark.parametrize("raise_to", [800 * MIB, GIB])
def test_a_limit_below_what_is_used_takes_nothing_and_gives_nothing(
    null_host: Host, null_box: Box, raise_to: int
) -> None:
    with _talker(null_host, null_box.directory) as talk:
        assert talk.ask(f"alloc {600 * MIB}") == "0 0"
        set_limit(null_box.directory, 300 * MIB)
        assert _free(talk) == 0
        assert talk.ask(f"alloc {2 * MIB}") == "2"
        assert talk.ask("info").split()[2] == str(300 * MIB)
        set_limit(null_box.directory, raise_to)
        assert _free(talk) == raise_to - 600 * MIB, "at the very next call"
        assert talk.ask(f"alloc {raise_to - 600 * MIB}") == "0 1"
        set_limit(null_box.directory, 1)
        assert talk.ask("free 0") == "0"
        assert talk.ask("free 1") == "0"
        assert null_box.use().used_bytes == 0


def _by_rename(library: Path, path: Path) -> None:
    fresh = path.with_suffix(".new")
    shutil.copy(library, fresh)
    fresh.rename(path)


def _another_build(library: Path, path: Path) -> None:
    """The same code and another file content, as another release has."""
    fresh = path.with_suffix(".new")
    shutil.copy(library, fresh)
    subprocess.run(["strip", "--strip-debug", fresh], check=True)
    fresh.rename(path)


@pytest.mark.parametrize("replace", [_by_rename, _another_build])
def test_row_47_the_library_is_replaced_while_in_use(
    null_host: Host, null_box: Box, tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / "libvgpu.so"
    shutil.copy(null_host.library, path)
    installed = Host(path, null_host.driver_dir)
    with _talker(installed, null_box.directory) as old:
        assert old.ask(f"alloc {400 * MIB}").startswith("0 ")
        replace(null_host.library, path)
        with _talker(installed, null_box.directory) as new:
            assert new.ask(f"alloc {600 * MIB}").startswith("0 ")
            assert old.ask(f"alloc {30 * MIB}") == "2"
            assert new.ask(f"alloc {30 * MIB}") == "2"
            assert old.ask(f"alloc {24 * MIB}").startswith("0 ")
            assert null_box.use().used_bytes == GIB
            old.kill()
            assert new.ask(f"alloc {424 * MIB}").startswith("0 ")
