"""`gpuslice run --image` on real daemons with simulated GPUs."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import names
from lab.node.namespace import children, environment
from simgpu import load_output
from tests.docker.grants import BUILD_S
from tests.docker.running import SMALL, Runs
from tests.docker.running import runs as runs
from tests.support import ROOT, measured

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

_MEMORY: Final = "10240MiB"


@measured
def test_containers_keep_their_parts_of_a_gpu(runs: Runs) -> None:
    """Memory, compute, what `docker exec` sees, and a refusal with what is free. The containers run
    until they are killed, because starts may take seconds."""
    limits = {"small": SMALL, "large": ("--memory", "20GiB", "--core", "70")}
    with ThreadPoolExecutor() as threads:
        both = [
            threads.submit(
                runs.run,
                *("--rm", "--name", name, "--", "sleep", "infinity"),
                limit=limit,
                status=128 + signal.SIGKILL,
            )
            for name, limit in limits.items()
        ]
        try:
            runs.until(lambda: all(map(runs.running, limits)))
            seen = runs.exec("small", "nvidia-smi")
            full = runs.refused("--", "true", limit=("--memory", "11GiB"))
            loads = [threads.submit(runs.exec, name, "cuda-load", "9", "500") for name in limits]
            outs = [load.result() for load in loads]
        finally:
            for name in filter(runs.running, limits):
                runs.client.containers.get(name).kill()
        for run in both:
            run.result()
    assert _MEMORY in seen
    assert "--memory: invalid value 11GiB: must be at most 10GiB, what is free of GPU-" in full
    assert "small has 10GiB and 30 %" in full and "large has 20GiB and 70 %" in full
    small, large = (sum([*dict(load_output.seconds(out)).values()][2:-2]) for out in outs)
    assert 100 * small / (small + large) == pytest.approx(30, abs=2), outs
    assert runs.files() == []


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ("--rm -- sh -c 'exit 7'", 7, ""),
        ("-- absent", 127, "'absent' cannot be inspected: it is not on the container's PATH"),
        ("-- /absent", 127, "'/absent' cannot be inspected: No such file or directory"),
        ("-- /etc/passwd", 126, "'/etc/passwd' cannot be inspected: Permission denied"),
        ("-- /etc", 126, "'/etc' cannot be inspected: Permission denied"),
        ("-w /etc/passwd -- true", 125, "/etc/passwd is not a directory"),
    ],
)
def test_the_exit_status_is_that_of_docker_run(
    runs: Runs, words: str, status: int, error: str
) -> None:
    done = runs.run(*shlex.split(words), status=status)
    assert error in done.stderr
    assert runs.files() == [] and runs.containers() == []


def test_input_and_outputs_are_passed_on(runs: Runs) -> None:
    """Standard output and error stay apart, and the end of the input is the container's, too."""
    text = "line\n" * 100_000
    done = runs.run("-i", "--rm", "--", "sh", "-c", "echo there >&2; cat", given=text)
    assert done.stdout == text and done.stderr == "there\n"


def test_a_container_that_stays_keeps_its_part_until_it_is_removed(runs: Runs) -> None:
    done = runs.run("--name", "web", "--", "nvidia-smi")
    assert _MEMORY in done.stdout
    assert done.stderr == "gpuslice: web keeps its part of the GPU until: gpuslice rm web\n"
    assert "web has 10GiB and 30 %" in runs.refused("--", "true", limit=("--memory", "31GiB"))
    runs.client.containers.get("web").start()
    again = runs.client.containers.get("web").wait()
    assert again["StatusCode"] == 0
    runs.client.containers.get("web").rename("other")
    assert " other (exited) " in runs.gpuslice("ps").stdout
    (shown,) = json.loads(runs.gpuslice("ps", "-o", "json").stdout)
    assert (shown["name"], shown["state"]) == ("other", "exited")
    assert runs.gpuslice("rm", "web").stdout == "web\n"
    assert runs.files() == [] and runs.containers() == []


def test_a_host_that_fails_is_reported(runs: Runs, tmp_path: Path) -> None:
    """Nothing runs without a host."""
    fails = 'import sys\nif "host" in sys.orig_argv: sys.exit("no host today")\n'
    (tmp_path / "sitecustomize.py").write_text(fails)
    runs.environ["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    error = runs.refused("--", "true")
    assert error.startswith("gpuslice: the limit cannot be kept: ") and error.count("\n") == 1
    assert "no host today" in error
    assert runs.containers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_the_containers(runs: Runs, number: signal.Signals) -> None:
    trap = f"trap 'echo got; exit 9' {number.name.removeprefix('SIG')}"
    program = f"{trap}; echo ready; sleep 60 & wait"
    run = runs.start(*runs.words("--rm", "--", "bash", "-c", program), name="run")
    runs.until(lambda: "ready" in runs.text("run.out"), "run.err")
    run.signal(number)
    runs.until(lambda: not run.running or runs.running("web"), "run.err")
    if run.running:  # the container had started, perhaps before its shell could catch the signal
        time.sleep(1)
        run.signal(number)
    runs.until(lambda: not run.running, "run.err")
    assert run.entering.returncode == 9
    assert runs.text("run.out").split() == ["ready", "got"] and runs.files() == []


def test_a_terminal(runs: Runs) -> None:
    """The container has a terminal of the same size. Keys are the container's, ^C too."""
    program = "trap 'stty size; exit 5' INT; stty size; [ -t 0 ] && echo ready; sleep 60"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (33, 77))
    command = runs.machine.namespace.enter(runs.words("-it", "--rm", "--", "bash", "-c", program))
    before = termios.tcgetattr(theirs)
    run = subprocess.Popen(
        command,
        env=environment(runs.environment),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    seen = _read(ours, "ready")
    termios.tcsetwinsize(theirs, (44, 88))
    for pid in children(run.pid):
        os.kill(pid, signal.SIGWINCH)
    time.sleep(2)
    os.write(ours, b"\x03")
    assert run.wait(60) == 5, seen
    seen += _read(ours, "44 88")
    assert termios.tcgetattr(theirs) == before
    assert "ready" in seen and "44 88" in seen


def _read(terminal: int, until: str) -> str:
    seen = ""
    while until not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 4096).decode()
    return seen


@pytest.mark.parametrize("made", [names.BOOKINGS_DIR, "/cdi/", "'Id'"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_the_steps_undoes_them(runs: Runs, number: int, made: str) -> None:
    # After the start the container gets the signal itself, and misses it before the trap is set.
    script = f"trap 'exit {128 + number}' {number:d}; while :; do sleep 0.1; done"
    run = runs.start(*runs.words("--rm", "--name", "web", "--", "sh", "-c", script), name="run")
    runs.until(lambda: made in f"{runs.files()} {runs.containers()}" or not run.running, "run.err")
    while run.running:
        run.signal(number)
        time.sleep(0.5)
    assert run.entering.returncode == 128 + number, runs.text("run.err")
    assert runs.files() == [] and runs.containers() == []


def test_a_detached_container_needs_the_service(runs: Runs) -> None:
    for words in ("-d", "--restart=always"):
        error = runs.refused(words, "--", "true")
        assert "must not be set without the service" in error and "host install" in error
    runs.serve()
    done = runs.run("-d", "--restart", "always", "--name", "web", "--", "sleep", "infinity")
    assert runs.client.containers.get("web").id == done.stdout.strip()
    assert _MEMORY in runs.exec("web", "nvidia-smi")
    assert runs.gpuslice("rm", "web").returncode == 0
    assert runs.files() == []


def test_options_reach_docker(runs: Runs, tmp_path: Path) -> None:
    script = "id -u; pwd; echo $A $B; cat /given/file; df -m /dev/shm | tail -1"
    place = runs.machine.namespace.outside(Path("/srv"))
    (place / "file").write_text("content\n")
    words = "--user 1000:1000 -w /tmp -e A=1 -e B -v /srv:/given:ro --shm-size 32m --ipc private"
    done = runs.run(*words.split(), "--rm", "--entrypoint", "sh", "--", "-c", script)
    assert done.stdout.split()[:4] == ["1000", "/tmp", "1", "content"]
    assert " 32 " in done.stdout
