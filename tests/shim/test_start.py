"""Programs whose LD_PRELOAD puts libc or the driver before us, as the loader does in a container.

There, the library is named in /etc/ld.so.preload, whose names come behind the variable's; here it
is the variable's last. The limit is 1 GiB of a card of 4 GiB.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shim.conftest import GIB, MIB, Grants, Host
from tests.shim.test_strict import place

pytestmark = pytest.mark.sim

_SOURCES = Path(__file__).resolve().parent / "c"
_LIMITED = "0 2 0 1024"
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_WAYS = ("name", "default", "path", "deep", "linked")
# {real}: the driver's directory, {libcs}: libc's, {copy}: of the driver, under another name.
_LISTS = (
    "libc.so.6",
    "{libcs}/libc.so.6",
    "libdl.so.2",
    "libcuda.so.1",
    "{real}/libcuda.so.1",
    "{copy}",
    "libnvidia-ml.so.1",
    "libc.so.6 libcuda.so.1",
    "libm.so.6:libc.so.6::",
    "/no/such.so:libm.so.6:libcuda.so.1",
    "$ORIGIN/no-such.so libc.so.6",
)
_CUDA_PYTHON = """
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
error, context = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])
d.cuCtxSetCurrent(context)
codes = [int(d.cuMemAlloc(bytes)[0]) for bytes in (128 << 20, 1 << 30)]
error, free, total = d.cuMemGetInfo()
print(*codes, int(error), total >> 20, end="")
"""


@dataclass(frozen=True)
class Tried:
    host: Host
    programs: Path
    libcs: Path

    def environment(self, listed: str, grant: Path | None = None, **more: str) -> Mapping[str, str]:
        known = {"real": self.host.driver_dir, "libcs": self.libcs, "copy": self.programs / "own"}
        preload = f"{listed.format(**known)} {self.host.library}"
        return {**self.host.environment(grant), "LD_PRELOAD": preload, **more}

    def run(
        self, command: Sequence[str | Path], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done
        return done

    def program(self, way: str) -> list[str | Path]:
        linked = "linked" if way == "linked" else "program"
        return [self.programs / linked, way, self.host.driver_dir / "libcuda.so.1"]


@pytest.fixture(scope="module")
def tried(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    programs = tmp_path_factory.mktemp("programs")
    linked = ["-DLINKED", f"-L{host.driver_dir}", "-l:libcuda.so.1"]
    for name, flags in (("program", []), ("linked", linked)):
        source = _SOURCES / "strict_program.c"
        subprocess.run(["gcc", source, "-o", programs / name, *flags, "-ldl"], check=True)
    shutil.copy(host.driver_dir / "libcuda.so.1", programs / "own")
    maps = subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True, check=True)
    (libc,) = {line.split()[-1] for line in maps.stdout.splitlines() if "/libc.so.6" in line}
    return Tried(host, programs, Path(libc).parent)


@pytest.mark.parametrize("listed", _LISTS)
def test_no_list_of_preloads_puts_anything_before_the_limit(
    listed: str, tried: Tried, grants: Grants
) -> None:
    grant = grants.make(GIB, GIB)
    environment = tried.environment(listed, grant)
    for way in _WAYS:
        if "{copy}" not in listed or way not in ("path", "deep"):  # two drivers, none to be used
            assert tried.run(tried.program(way), environment).stdout == _LIMITED
    assert tried.run([sys.executable, "-c", _CUDA_PYTHON], environment).stdout == _LIMITED


@pytest.mark.parametrize("listed", ["", "{real}/libcuda.so.1", "libc.so.6", "libcuda.so.1"])
def test_nor_in_strict_mode(
    listed: str, tried: Tried, grants: Grants, build_dir: Path, tmp_path: Path
) -> None:
    """With the forwarder where the driver is looked for, or past it, on the path."""
    forwarders = tmp_path / "forwarders"
    place(forwarders, build_dir, tried.host.library, tried.host.driver_dir)
    grant = grants.make(GIB, GIB)
    for path in (forwarders, tried.host.driver_dir):
        environment = tried.environment(listed, grant, LD_LIBRARY_PATH=str(path))
        for way in _WAYS:
            assert tried.run(tried.program(way), environment).stdout == _LIMITED


@pytest.mark.parametrize("padding", ["full variable", "full environment"])
def test_no_room_in_the_environment_is_no_way_around(
    padding: str, tried: Tried, grants: Grants
) -> None:
    """The kernel takes no variable of more than 128 KiB, nor more than its share of the stack."""
    environment = dict(tried.environment("libc.so.6", grants.make(GIB, GIB)))
    most = 131071 - len("LD_PRELOAD=")
    if padding == "full variable":
        environment["LD_PRELOAD"] += ":" * (most - len(environment["LD_PRELOAD"]))
        assert tried.run(tried.program("name"), environment).stdout == _LIMITED
        return
    low, high = 0, 131000  # bytes of the last variable that still fit
    while low < high:
        middle = (low + high + 1) // 2
        try:
            done = subprocess.run(
                tried.program("name"),
                env={**environment, "PADDED": "x" * 131000, "LAST": "x" * middle},
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (MIB, MIB)),
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            high = middle - 1
            continue
        assert (done.returncode, done.stdout, done.stderr) == (0, _LIMITED, ""), middle
        low = middle
    assert 0 < high < 131000, "the environment was never full"


def test_a_loader_started_by_hand(tried: Tried, grants: Grants) -> None:
    """Its own options are what the kernel was given, and are given again."""
    grant = grants.make(GIB, GIB)
    library = tried.host.library
    plain = {**tried.host.environment(grant, preload=False)}
    by_hand = [_LOADER, "--argv0", "other name", "--preload", f"libc.so.6 {library}"]
    for way in _WAYS:
        assert tried.run([*by_hand, *tried.program(way)], plain).stdout == _LIMITED
    shell = ["/bin/sh", "-c", 'echo "$0" "$1"; ls /proc/$$/exe -l', "zero", "one"]
    done = tried.run([*by_hand, *shell], plain)
    assert done.stdout.startswith("zero one\n")
    assert "ld-linux" in done.stdout


_STATE = """
import json, os, sys
def say():
    kept = ("Umask", "SigBlk", "SigIgn", "SigCgt", "Threads", "ShdPnd", "Name", "NoNewPrivs")
    lines = open("/proc/self/status").read().splitlines()
    print(json.dumps({
        "status": [line for line in lines if line.startswith(kept)],
        "pid": os.getpid(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "arguments": sys.orig_argv,
        "command": open("/proc/self/cmdline").read(),
        "executable": os.readlink("/proc/self/exe"),
        "environment": {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
        "directory": os.getcwd(),
    }))
say()
"""


def test_the_program_is_as_it_would_have_been(tried: Tried) -> None:
    """Process, name, arguments, descriptors, signals; the environment but for LD_PRELOAD."""
    told = []
    program = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.umask(0o027)
read, write = os.pipe()
os.set_inheritable(write, True)
os.environ["LD_PRELOAD"] = sys.argv[1]  # ours is in front in this process
os.execve(sys.executable, ["odd name", "-c", {_STATE!r}, "", "two  words"], os.environ)
"""
    for listed in ("", "libc.so.6"):
        environment = tried.environment(listed)
        with subprocess.Popen(
            [sys.executable, "-c", program, environment["LD_PRELOAD"]],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            out, _ = running.communicate()
        state = json.loads(out)
        assert state.pop("pid") == running.pid
        told.append(state)
    assert told[0] == told[1]


def test_scripts_and_programs_without_a_name(tried: Tried, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('#!/bin/sh -e\necho "$0" "$@"\n')
    script.chmod(0o755)
    environment = tried.environment("libc.so.6")
    assert tried.run([script, "a", "b c"], environment).stdout == f"{script} a b c\n"
    unnamed = """
import os, shutil
for flags in (0, os.MFD_CLOEXEC):
    memory = os.memfd_create("unnamed", flags)
    os.write(memory, open(shutil.which("echo"), "rb").read())
    if os.fork() == 0:
        os.execve(memory, ["echo", "from memory"], dict(os.environ))
    assert os.wait()[1] == 0
"""
    done = tried.run([sys.executable, "-c", unnamed], environment)
    assert done.stdout == "from memory\n" * 2


def test_children_however_they_are_made(tried: Tried, grants: Grants) -> None:
    """vfork, fork, posix_spawn; with an environment of their own the loader is told anew."""
    program = [str(word) for word in tried.program("linked")]
    environment = tried.environment("libc.so.6", grants.make(GIB, GIB))
    parent = f"""
import os, subprocess
program, environment = {program!r}, {dict(environment)!r}
subprocess.run(program, env=environment, check=True)
subprocess.run(program, env=environment, check=True, preexec_fn=lambda: None)
os.waitpid(os.posix_spawn(program[0], program, environment), 0)
os.execve(program[0], program, environment)
"""
    assert tried.run([sys.executable, "-c", parent], environment).stdout == _LIMITED * 4


def _tried_by_strace(tried: Tried, environment: Mapping[str, str]) -> int:
    """How many times the program is executed."""
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=execve,execveat", "-o", "/dev/stdout"]
        + [f"-E{key}={value}" for key, value in environment.items()]
        + ["/bin/true"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.count("execve")


_WRAPS_LOOKUPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
void *dlopen(const char *path, int mode)
{
    return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(path, mode);
}
"""
_WRAPS_MALLOC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static unsigned long calls;
void *malloc(size_t bytes)
{
    static void *(*next)(size_t);
    if (!next)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    calls++;
    return next(bytes);
}
unsigned long calls_of_malloc(void) { return calls; }
"""
_WRAPS_DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int cuInit(unsigned int flags)
{
    if (write(1, "wrapped ", 8) != 8)
        return 1;
    return ((int (*)(unsigned int))dlsym(RTLD_NEXT, "cuInit"))(flags);
}
"""


@pytest.mark.parametrize("source", [_WRAPS_LOOKUPS, _WRAPS_MALLOC, _WRAPS_DRIVER])
def test_those_who_hand_on_to_us_stay_before_us(
    source: str, tried: Tried, grants: Grants, tmp_path: Path
) -> None:
    """And are left there also where another library has to go behind us."""
    other = tmp_path / "other.so"
    (tmp_path / "other.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "other.c", "-o", other], check=True)
    grant = grants.make(GIB, GIB)
    for listed in (f"{other}", f"{other} libc.so.6", f"libm.so.6 {other}:libcuda.so.1"):
        for way in ("linked", "name"):
            done = tried.run(tried.program(way), tried.environment(listed, grant))
            wrapped = "wrapped " if source == _WRAPS_DRIVER and way == "linked" else ""
            assert done.stdout == wrapped + _LIMITED
    if shutil.which("strace"):
        assert _tried_by_strace(tried, tried.environment(f"{other}")) == 1
        assert _tried_by_strace(tried, tried.environment(f"{other} libc.so.6")) == 2
        assert _tried_by_strace(tried, tried.host.environment()) == 1


def test_a_sanitizers_runtime_stays_first(tried: Tried, grants: Grants, tmp_path: Path) -> None:
    """It ends a program in which it is not."""
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    source = _SOURCES / "strict_program.c"
    program = tmp_path / "program"
    subprocess.run(["gcc", "-fsanitize=address", source, "-o", program, "-ldl"], check=True)
    for listed in (runtime, f"{runtime} libc.so.6", f"/no/such.so {runtime} libc.so.6"):
        environment = tried.environment(
            listed, grants.make(GIB, GIB), ASAN_OPTIONS="detect_leaks=0"
        )
        assert tried.run([program, "name"], environment).stdout == _LIMITED


def test_a_second_start_that_is_refused_is_said(tried: Tried) -> None:
    """The program runs; nothing in it is worth more than its life."""
    refuses = """
import ctypes, os, struct, sys
code = struct.pack("HBBIHBBIHBBIHBBI",
    0x20, 0, 0, 0,             # the call's number
    0x15, 0, 1, int(sys.argv[1]),
    0x06, 0, 0, 0x00050001,    # refused: EPERM
    0x06, 0, 0, 0x7fff0000)    # allowed
libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(program, len(program))) == 0
os.environ["LD_PRELOAD"] = sys.argv[2]  # ours is in front in this process
os.execve(os.open("/bin/echo", os.O_RDONLY), ["echo", "alive"], os.environ)
"""
    # Python executes a descriptor by execveat (322), which is let through; we ask for execve (59).
    environment = tried.environment("libc.so.6")
    done = tried.run([sys.executable, "-c", refuses, "59", environment["LD_PRELOAD"]], environment)
    assert done.stdout == "alive\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpuslice: this process may pass by its GPU limit: ")
    assert "/libc.so.6 is loaded before " in line


def test_a_library_that_is_opened_later_starts_nothing(tried: Tried, tmp_path: Path) -> None:
    """With libc and the driver before us: as with a forwarder in a program without preload."""
    program = tmp_path / "late.c"
    program.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        "int main(int argc, char **argv)\n"
        '{ puts("once"); fflush(stdout); return argc != 3 || !dlopen(argv[1], RTLD_NOW)'
        " || !dlopen(argv[2], RTLD_NOW); }\n"
    )
    subprocess.run(["gcc", program, "-o", tmp_path / "late", "-ldl"], check=True)
    environment = tried.host.environment(preload=False)
    for listed in ({}, {"LD_PRELOAD": "libc.so.6"}):
        done = tried.run(
            [tmp_path / "late", "libcuda.so.1", tried.host.library], {**environment, **listed}
        )
        assert (done.stdout, done.stderr) == ("once\n", "")


def test_under_a_debugger(tried: Tried, grants: Grants) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("no gdb")
    environment = tried.environment("libc.so.6", grants.make(GIB, GIB))
    done = subprocess.run(
        [
            *("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off"),
            *("-ex", "set startup-with-shell off"),
            *("-ex", f"set env LD_PRELOAD {environment['LD_PRELOAD']}"),
            *("-ex", "break main", "-ex", "run", "-ex", "continue", "--args"),
            *map(str, tried.program("name")),
        ],
        env={key: value for key, value in environment.items() if key != "LD_PRELOAD"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Breakpoint 1, " in done.stdout
    assert _LIMITED in done.stdout
    assert "exited normally" in done.stdout
