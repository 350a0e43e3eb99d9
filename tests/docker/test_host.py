"""`gpuslice host` on real daemons: after a kill or a reboot, nothing leaks, no container has a GPU
without its limit, and all is freed or runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pytest
from docker.errors import APIError, NotFound

from gpuslice.contract import names
from lab.docker.image import IMAGE
from lab.docker.machine import Machine
from lab.node.namespace import Inside
from tests.docker.grants import BUILD_S

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

_GIB: Final = 1 << 30
_PERIOD_S: Final = 2.0
"""The host makes a pass at least this often."""
_READY_S: Final = 60.0
_SETTLED_S: Final = 10.0
"""All is freed or runs within this time after dockerd and the host answer."""
_POLL_S: Final = 0.1
_FILES: Final = (names.HOST_RUN_DIR, "/var/run/cdi", "/var/lib/gpuslice/docker", names.BOOKINGS_DIR)
_BOOKINGS: Final = {names.ENV_BOOKINGS: names.BOOKINGS_DIR}
"""Each machine has bookings of its own."""
_MEMORY: Final = "10240MiB"


@dataclass
class Host:
    """The machine's processes of the product. log: of all hosts."""

    machine: Machine
    log: Path
    started: list[Inside] = field(default_factory=list)

    def start(self, *arguments: str) -> Inside:
        serves = "msg=serving" if not arguments else "gpuslice host serves"
        before = self.text.count(serves)
        with self.log.open("a") as log:
            process = self.python(log, "-m", "gpuslice", "host", *arguments)
        wait(lambda: self.text.count(serves) > before or not process.running, self.log)
        return process

    def make(
        self, key: str, until: str = "end", restart: str = "no", gib: int = 10, core: int = 30
    ) -> Inside:
        """Make a container up to a step. If that is not the end, the process waits for its kill."""
        log = self.log.with_name(f"{key}.log")
        words = [key, str(gib * _GIB), str(core), restart, until, IMAGE, "--", "sleep", "infinity"]
        with log.open("w") as output:
            process = self.python(output, "-m", "tests.docker.making", *words)
        wait(lambda: until in log.read_text() or not process.running, log)
        assert until == "end" or process.running, log.read_text()
        return process

    def rm(self, *keys: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run([sys.executable, "-m", "gpuslice", "rm", *keys], _BOOKINGS)

    def inspect(self, key: str) -> Mapping[str, Any]:
        """Return Docker's State of the container."""
        found: Mapping[str, Any] = self.machine.client.api.inspect_container(key)["State"]
        return found

    def state(self, key: str) -> str:
        """Return Docker's state of the container, or "absent"."""
        try:
            return str(self.inspect(key)["Status"])
        except NotFound:
            return "absent"

    def settles(self, key: str, state: str, within_s: float = _SETTLED_S) -> None:
        """Wait until the container has the state. An absent one must leave no file."""
        wait(lambda: self.state(key) == state, self.log, within_s)
        if state == "absent":
            wait(lambda: not self.files(key), self.log, within_s)
        else:
            assert self.files(key)

    def files(self, key: str) -> Sequence[str]:
        found = self.machine.run(["find", *_FILES, "-name", f"*{key}*"]).stdout.split()
        return [each for each in found if f"{key}." in each or each.endswith(key)]

    def all_files(self) -> str:
        """Return what any grant or booking has left."""
        find = ["find", *_FILES, "-mindepth", "1", "-maxdepth", "1", "!", "-name", ".*"]
        return self.machine.run(find).stdout

    def sees(self, key: str) -> str:
        """Return the memory that nvidia-smi shows in the container."""
        done = self.machine.client.containers.get(key).exec_run("nvidia-smi")
        shown = bytes(done.output).decode()  # type: ignore[arg-type]
        return _MEMORY if _MEMORY in shown else shown

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def python(self, log: IO[str], *arguments: str) -> Inside:
        command = [sys.executable, *arguments]
        process = self.machine.namespace.start(
            command, log, subprocess.STDOUT, {**self.machine.environment, **_BOOKINGS}
        )
        self.started.append(process)
        return process


def wait(done: Callable[[], bool], log: Path, within_s: float = _READY_S) -> None:
    until_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(_POLL_S)


@pytest.fixture
def host(machine: Machine, tmp_path: Path) -> Iterator[Host]:
    made = Host(machine, tmp_path / "host.log")
    yield made
    for process in made.started:
        if process.running:
            process.kill(signal.SIGKILL)
    for container in machine.client.containers.list(all=True):
        container.remove(force=True)
    machine.run(["sh", "-c", f"umount -l /run/gpuslice/*; rm -rf {' '.join(_FILES)}"])


@pytest.mark.parametrize("order", ["docker_first", "host_first"])
def test_after_a_reboot_a_container_runs_again_under_its_limit(host: Host, order: str) -> None:
    host.start()
    host.make("always", restart="always")
    host.make("stopped", restart="unless-stopped", gib=5, core=0)
    host.make("once", gib=5, core=0)
    assert host.sees("always") == _MEMORY
    host.machine.client.containers.get("stopped").stop(timeout=0)
    host.machine.reboot(daemons=order == "docker_first")
    host.start()
    if order == "host_first":
        host.machine.start_daemons()
    host.settles("always", "running")
    assert host.sees("always") == _MEMORY
    assert host.state("stopped") == host.state("once") == "exited"
    host.machine.client.containers.get("once").start()
    assert host.rm("always", "stopped", "once").returncode == 0
    for key in ("always", "stopped", "once"):
        host.settles(key, "absent")


@pytest.mark.parametrize("until", ["booked", "made", "created", "started"])
def test_a_run_that_is_killed_leaves_nothing_or_a_limited_container(host: Host, until: str) -> None:
    host.start()
    run = host.make("web", until)
    time.sleep(_PERIOD_S + 1)  # a pass of the host must not touch what a living run makes
    assert host.files("web")
    run.kill(signal.SIGKILL)
    if until == "started":
        host.settles("web", "running")
        assert host.sees("web") == _MEMORY
        host.machine.client.containers.get("web").remove(force=True)
    host.settles("web", "absent")


def test_gpuslice_run_is_killed_at_any_time(host: Host) -> None:
    """Between its steps too, which the stand-in above takes one by one."""
    host.start()
    command = ["-m", "gpuslice", "run", "--memory", "10GiB", "--name", "web", "--network", "none"]
    for tenth_s in range(5, 50, 5):
        with host.log.with_name("run.log").open("w") as log:
            run = host.python(log, *command, "--image", IMAGE, "--", "sleep", "infinity")
        time.sleep(tenth_s / 10)
        run.kill(signal.SIGKILL)
        time.sleep(1)
        if host.state("web") == "running":
            assert host.sees("web") == _MEMORY
            host.machine.client.containers.get("web").remove(force=True)
        wait(lambda: not host.all_files(), host.log, _SETTLED_S)
        assert host.state("web") == "absent"


@pytest.mark.parametrize("live_restore", [True, False], ids=["live_restore", "plain"])
@pytest.mark.parametrize("until", ["booked", "made", "created", "started", "end"])
def test_dockerd_is_killed(host: Host, live_restore: bool, until: str) -> None:
    options = ["--live-restore"] * live_restore
    host.machine.restart_dockerd(*options)
    host.start()
    run = host.make("web", until, restart="always")
    host.machine.kill_dockerd()
    if until != "end":
        run.kill(signal.SIGKILL)
    time.sleep(2)
    assert host.files("web"), "nothing is freed while Docker does not answer"
    host.machine.start_dockerd(*options)
    if until in ("started", "end"):
        host.settles("web", "running")
        assert host.sees("web") == _MEMORY
    else:
        host.settles("web", "absent")


@pytest.mark.parametrize("until", ["booked", "made", "created", "started", "end"])
def test_the_host_is_killed(host: Host, until: str) -> None:
    process = host.start()
    run = host.make("web", until)
    process.kill(signal.SIGKILL)
    if until != "end":
        run.kill(signal.SIGKILL)
    elif host.machine.client.containers.get("web"):
        assert host.sees("web") == _MEMORY
    host.start()
    if until in ("started", "end"):
        host.settles("web", "running")
        assert host.sees("web") == _MEMORY
        host.machine.client.containers.get("web").remove(force=True)
    host.settles("web", "absent")


@pytest.mark.parametrize("restart", ["always", "no"])
def test_the_container_is_killed(host: Host, restart: str) -> None:
    host.start()
    host.make("web", restart=restart)
    before = host.inspect("web")["Pid"]
    host.machine.run(["sh", "-c", f"kill -9 {before}"])
    if restart == "no":
        host.settles("web", "exited")
        assert host.rm("web").returncode == 0
        host.settles("web", "absent")
        return
    wait(lambda: host.inspect("web")["Pid"] not in (0, before), host.log)
    assert host.sees("web") == _MEMORY


def test_a_grant_that_does_not_fit_any_more_stays_down_until_it_does(host: Host) -> None:
    host.start()
    host.make("web", restart="always", gib=30)
    host.machine.reboot(daemons=False)
    host.machine.start_containerd()
    with host.log.with_name("taken.log").open("w") as log:
        limited = ["-m", "gpuslice", "run", "--memory", "20GiB", "--", "sleep", "100"]
        taken = host.python(log, *limited)
    wait(lambda: bool(host.machine.run(["ls", names.BOOKINGS_DIR]).stdout), host.log)
    host.machine.start_dockerd()
    host.start()
    wait(lambda: "--memory: invalid value 30GiB" in host.text, host.log)
    time.sleep(2)
    assert host.state("web") == "exited"
    with pytest.raises(APIError, match=r"gpuslice\.io/grant=web"):
        host.machine.client.containers.get("web").start()
    taken.kill(signal.SIGTERM)
    host.settles("web", "running")


def test_a_second_host_names_the_first(host: Host) -> None:
    host.make("web")
    first = host.start("--while-used")
    command = [sys.executable, "-m", "gpuslice", "host", "--while-used"]
    second = host.machine.run(command, _BOOKINGS)
    assert second.returncode == 1
    assert "gpuslice host --while-used pid=" in second.stderr
    host.machine.client.containers.get("web").remove(force=True)
    wait(lambda: not first.running, host.log)
    assert not host.files("web")


def test_a_container_of_a_committed_image_is_a_strangers(host: Host) -> None:
    """`docker commit` copies our labels into the image. It gets the grant only if a user asks."""
    host.start()
    host.make("web")
    client = host.machine.client
    client.containers.get("web").commit("local/copy", "1")
    options: Any = {"image": "local/copy:1", "network_mode": "none"}
    client.containers.create(name="made", **options)
    for name, runtime in (("plain", "runc"), ("asks", "nvidia")):
        client.containers.create(name=name, runtime=runtime, **options).start()
    assert "web)" in host.rm("plain").stderr
    client.containers.get("web").remove(force=True)
    if not host.machine.release.cdi:
        time.sleep(2 * _PERIOD_S)
        assert host.sees("asks") == _MEMORY and host.files("web")
        client.containers.get("asks").remove(force=True)
    wait(lambda: not host.all_files(), host.log, _SETTLED_S)
    assert host.rm("web", "plain", "made").returncode == 1
    time.sleep(2 * _PERIOD_S)
    assert (host.state("made"), host.state("plain"), host.all_files()) == ("created", "running", "")
    assert "warning" not in host.text


def test_rm_names_what_exists(host: Host) -> None:
    host.make("web", gib=5)
    done = host.rm("wbe")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gpuslice rm: invalid value 'wbe': must be a container of gpuslice run (web)\n"
    )
    host.machine.client.containers.get("web").rename("other")
    assert "(other)" in host.rm("wbe").stderr
    both = host.rm("web", "wbe")
    assert both.stdout == "web\n" and "(none exists)" in both.stderr
    wait(lambda: not host.files("web"), host.log)
    assert host.state("other") == "absent"
