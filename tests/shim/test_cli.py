"""`python -m shim run` and `show`, as used on a laptop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, names, region_file
from gpuslice.contract.grant_file import Policy
from shim import region
from tests.shim.clients import CUDA, NVML
from tests.shim.conftest import GIB, GPUS, MIB, Grants, Host
from tests.shim.region.core import patch
from tests.support import ROOT, run

pytestmark = pytest.mark.sim

_TOTALS = NVML + "print([pynvml.nvmlDeviceGetMemoryInfo(gpu(i)).total for i in (0, 1)])"

Shim = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shim(gpu_host: Host, tmp_path: Path) -> Shim:
    """Run `python -m shim ...`; files that it leaves in TMPDIR fail the test."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def call(
        *arguments: str | Path, status: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {**gpu_host.environment(preload=False), "TMPDIR": str(temporary)}
        command = (sys.executable, "-m", "shim", *arguments)
        done = run(*command, env={**inherited, **environment})
        assert done.returncode == status, done
        assert list(temporary.iterdir()) == []
        return done

    return call


def _python(program: str) -> Sequence[str]:
    return ["--", sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("arguments", "totals"),
    [
        ("--memory 1GiB", [GIB, GIB]),
        ("--memory 1500000000", [1500000000, 1500000000]),
        ("--memory 50%", [2 * GIB, GIB]),
        ("--memory 3GiB --gpu 0", [3 * GIB, 0]),
        (f"--memory 100% --gpu {GPUS[1][0]}", [0, 2 * GIB]),
        ("--memory 25% --gpu 1 --gpu 0 --core 30", [GIB, GIB // 2]),
    ],
)
def test_run_limits_every_gpu_it_names(shim: Shim, arguments: str, totals: list[int]) -> None:
    assert shim("run", *arguments.split(), *_python(_TOTALS)).stdout == f"{totals}\n"


@pytest.mark.parametrize(
    ("options", "taken_mib"),
    [([], 364), (["--context-bytes=400MiB"], 464), (["--context-bytes=0", "--code-bytes=0"], 0)],
    ids=["measured", "said", "nothing"],
)
def test_run_limits_what_the_command_starts(shim: Shim, options: list[str], taken_mib: int) -> None:
    """A context and its code are charged the bytes that `run` measured, or those of its options."""
    program = f"""{CUDA}
free = GIB - {taken_mib} * MIB
assert must(d.cuMemGetInfo()) == (free, GIB)
must(d.cuMemAlloc(free))
assert d.cuMemAlloc(1)[0] == OOM
"""
    command = ["--", "sh", "-c", '"$0" -c "$1"', sys.executable, program]
    shim("run", "--memory", "1GiB", *options, *command)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--memory=lots", ["--memory: invalid value 'lots'", "20GiB"]),
        ("--memory=0", ["--memory: invalid value '0'", "1 to"]),
        ("--memory=3GiB", ["--memory: invalid value '3GiB'", "1 to 2GiB", GPUS[1][0]]),
        ("--memory=101%", ["--memory: invalid value '101%'", "1 to 100"]),
        ("--memory=1GiB --core 0", ["--core: invalid value '0'", "1 to 100"]),
        ("--memory=1GiB --core many", ["--core: invalid value 'many'", "1 to 100"]),
        ("--memory=1GiB --context-bytes 50%", ["--context-bytes", "'50%'", "to 4GiB"]),
        ("--memory=1GiB --context-bytes 3GiB", ["--context-bytes", "'3GiB'", "0 to 2GiB"]),
        (
            "--memory=1GiB --gpu 7",
            [f"--gpu: invalid value 7: must be one of 0 ({GPUS[0][0]}), 1 ({GPUS[1][0]})"],
        ),
        (
            f"--memory=1GiB --gpu 0 --gpu {GPUS[0][0]}",
            [f"--gpu: duplicate value {GPUS[0][0]}: must be listed once"],
        ),
    ],
)
def test_run_names_the_invalid_argument_and_starts_nothing(
    shim: Shim, arguments: str, words: list[str]
) -> None:
    done = shim("run", *arguments.split(), *_python("print('started')"), status=2)
    assert done.stdout == ""
    assert done.stderr.startswith("gpuslice: ") and done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done


def test_run_writes_the_policy_into_the_grant(shim: Shim) -> None:
    program = """
import os, pathlib
from gpuslice.contract import grant_file
data = pathlib.Path(os.environ["GPUSLICE_DIR"], "grant").read_bytes()
print([gpu.policy.value for gpu in grant_file.decode(data).gpus])
"""
    options = ["--memory", "1GiB", "--compute", "background"]
    assert shim("run", *options, *_python(program)).stdout == "['background', 'background']\n"


def test_run_without_a_driver_is_an_error(shim: Shim, tmp_path: Path) -> None:
    done = shim("run", "--memory", "1GiB", "--", "true", status=2, SIMGPU_DIR=str(tmp_path))
    assert "no NVIDIA driver answers" in done.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["sh", "-c", "kill -PIPE $$"], 128 + signal.SIGPIPE),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
    ],
    ids=str,
)
def test_run_ends_as_its_command_ends(shim: Shim, command: list[str], status: int) -> None:
    """`run` resets the signals that Python ignores. Otherwise `yes | head` would print an error."""
    done = shim("run", "--memory", "1GiB", "--", *command, status=status)
    assert done.stdout == ""
    assert status in (126, 127) or done.stderr == ""


def test_run_keeps_other_preloads_and_a_private_directory(shim: Shim) -> None:
    program = """
import os, stat
print(os.environ["LD_PRELOAD"].split(":")[1:], oct(os.stat(os.environ["GPUSLICE_DIR"]).st_mode))
"""
    done = shim("run", "--memory", "1GiB", *_python(program), LD_PRELOAD="libc.so.6")
    assert done.stdout == "['libc.so.6'] 0o40700\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_run_forwards_signals(host: Host, sent: signal.Signals) -> None:
    """The command handles the signal and ends as it chooses."""
    program = f"trap 'echo got; exit 9' {sent.name[3:]}; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen(
        [sys.executable, "-m", "shim", "run", "--memory", "1GiB", "--", "sh", "-c", program],
        cwd=ROOT,
        env=host.environment(preload=False),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.kill(running.pid, sent)
        assert running.stdout.read() == "got\n"
    assert running.returncode == 9


def test_show_prints_what_is_used(shim: Shim, gpu_host: Host, grants: Grants) -> None:
    directory = grants.make(GIB, 512 * MIB)
    program = CUDA + "must(d.cuMemAlloc(MIB)); d.cuMemAlloc(GIB)"
    with gpu_host.serving(program, directory) as running:
        rows = [line.split() for line in shim("show", directory).stdout.splitlines()]
    limits = ["GPU", "USED", "MEASURED", "LIMIT", "CORE", "POLICY"]
    unused = ["100%", "fair", "0.0s", "0.0s"]
    assert rows == [
        [*limits, "BUSY", "THROTTLED", "REFUSED"],
        [GPUS[0][0], "302MiB", "0B", "1GiB", *unused, "1,", "last", "1GiB"],
        [GPUS[1][0], "0B", "0B", "512MiB", *unused, "0"],
        ["slot", "0:", "process", str(running.pid) + ":", "302MiB", "0B"],
    ]


def test_show_distinguishes_exited_processes(shim: Shim, gpu_host: Host, grants: Grants) -> None:
    """Exited processes' charges remain, because no other process runs and `show` only reads."""
    directory = grants.make(GIB)
    with gpu_host.talker(directory) as exited:
        assert exited.ask(f"alloc {20 * MIB}") == "0 0"
        exited.kill()
        before = (directory / names.FILE_REGION).read_bytes()
        _, gpu, slot = shim("show", directory).stdout.splitlines()
        assert (directory / names.FILE_REGION).read_bytes() == before
    assert gpu.split()[:4] == [GPUS[0][0], "320MiB", "0B", "1GiB"]
    assert slot == (
        f"  slot 0: process {exited.pid}, which ended: 320MiB, reclaimed when a process starts,"
        " queries memory or would be refused"
    )


def worked(directory: Path, spent_ns: int) -> None:
    work = region_file.COMPUTE.pack(
        region_file.Compute(spent_ns=spent_ns, throttled_ns=2_040_000_000)._asdict()
    )
    patch(directory / names.FILE_REGION, region_file.Geometry(1).compute_offset(0), work)


@pytest.fixture
def forced(tmp_path: Path) -> Path:
    """A grant of 30 percent of a GPU's time as a cap."""
    region.create(tmp_path, [grant_file.Gpu(GPUS[0][0], 11156 * MIB, 30, 0, policy=Policy.CAPPED)])
    worked(tmp_path, 1_000_000_000)
    return tmp_path


def test_show_prints_the_use_of_compute(shim: Shim, forced: Path) -> None:
    row = shim("show", forced).stdout.splitlines()[1].split()
    assert row[3:] == ["10.89GiB", "30%", "capped", "1.0s", "2.0s", "0"]


def test_show_watches_until_it_is_interrupted(forced: Path) -> None:
    command = [sys.executable, "-m", "shim", "show", "--watch", str(forced)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().split()[6] == "1s/10s"
        row = running.stdout.readline()
        assert row.split()[6:] == ["0%/0%", "2.0s", "0"]
        assert len(row) <= 120
        worked(forced, 3_600_000_000_000)
        for busy in ("100%/100%", "0%/100%"):
            while running.stdout.readline().split()[6:] != [busy, "2.0s", "0"]:
                assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.stdout.read()
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("name", "bytes_left", "words"),
    [
        (names.FILE_GRANT, None, "No such file"),
        (names.FILE_GRANT, 10, "no valid copy"),
        (names.FILE_REGION, None, "No such file"),
        (names.FILE_REGION, 4096, "truncated"),
    ],
)
def test_show_names_the_file_that_is_wrong(
    shim: Shim, grants: Grants, name: str, bytes_left: int | None, words: str
) -> None:
    file = grants.make(GIB) / name
    if bytes_left is None:
        file.unlink()
    else:
        os.truncate(file, bytes_left)
    done = shim("show", file.parent, status=2)
    assert words in done.stderr and str(file.parent) in done.stderr


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_a_grant_is_on_tmpfs_unless_tmpdir_is_set() -> None:
    assert region.parent({}) == Path("/dev/shm")
    assert region.parent({"TMPDIR": "/somewhere"}) is None
