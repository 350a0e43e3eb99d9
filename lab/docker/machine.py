"""A simulated machine with Docker: GPUs, NVIDIA's driver and toolkit, containerd and dockerd.

    with Machine(NEW) as machine:
        machine.client.containers.run(IMAGE, "true", network_mode="none")

Everything is in mount and PID namespaces of the lab (lab/node), at the paths of a real machine, so
that NVIDIA's and Docker's defaults hold. Processes outside reach the API at `machine.url`. Tests
kill and start the daemons, and reboot the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final

import docker

from lab import Running, pages, tail
from lab.docker import image
from lab.docker.programs import Release
from lab.node import cgroups, host
from lab.node.lab import BUILD
from lab.node.namespace import Inside, Namespace
from simgpu import config

DATA: Final = Path("/var/lib/docker")
SOCKET: Final = Path("/run/docker.sock")
RUN_CDI: Final = Path("/run/cdi")
"""The directory of CDI specs that a reboot empties."""
CDI_SPEC: Final = Path("/etc/cdi/nvidia.json")
"""NVIDIA's CDI spec of the GPUs, by index and by UUID."""
TOOLKIT: Final = '[nvidia-container-runtime]\nmode = "cdi"\n'
"""The configuration of NVIDIA's container runtime."""
_CONTAINERD: Final = "/run/containerd/containerd.sock"
_CONTAINERD_CONFIG: Final = """\
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
"""
_DAEMON_CONFIG: Final = Path("/etc/docker/daemon.json")
_RUNTIMES: Final = {"runtimes": {"nvidia": {"args": [], "path": host.RUNTIME.name}}}
"""What `nvidia-ctk runtime configure` adds."""
_PRIVATE: Final = (
    *("--bridge=none", "--iptables=false", "--ip-forward=false", "--userland-proxy=false"),
    *("--ip6tables=false", "--group=root"),
)
"""Options with which dockerd leaves the network of this machine alone."""
_UP_S: Final = 60.0
_POLL_S: Final = 0.05
_TMPFS: Final = ("/run", "/dev/shm")
"""What a reboot empties."""


class MachineError(RuntimeError):
    """A part of the machine does not start. The text ends with its log."""


class Machine(Running):
    """A context manager: the daemons run until its exit, which leaves nothing on this machine.

    memory_bytes: the size of each GPU.
    """

    def __init__(self, release: Release, memory_bytes: Sequence[int] = (40 << 30,)) -> None:
        self.release = release
        self._memory = memory_bytes
        self.simulated = config.load(config.DEFAULT_FILE).with_gpus(memory_bytes)
        self.gpus = self.simulated.gpus
        self._options: Sequence[str] = ()
        self._containerd: Inside | None = None
        self._dockerd: Inside | None = None
        self._client: docker.DockerClient | None = None

    # --- the machine ------------------------------------------------------------------------

    def start(self) -> None:
        directories = self.release.ensure()
        self.namespace = Namespace()
        self.directory = self.namespace.directory
        self.sim_dir = self.directory / "sim"
        for place in map(Path, host.COVERED):
            self.namespace.cover(place)
        self._mount_tmpfs()
        host.install_driver(self.namespace, BUILD, self.sim_dir, self.simulated)
        host.install_nvidia_runtime(self.namespace, self.sim_dir, TOOLKIT)
        self._install(directories)
        self._start_gpus()
        names = [f"--device-name-strategy={each}" for each in ("index", "uuid")]
        output = [f"--output={CDI_SPEC}", "--format=json"]
        self.run(["nvidia-ctk", "cdi", "generate", *names, *output])
        self.start_daemons()
        self.import_image()

    def import_image(self) -> None:
        """Import IMAGE. A daemon with other options may have another store."""
        with image.archive().open("rb") as tar:
            self.client.api.import_image_from_data(
                tar, image.NAME, image.IMAGE.rpartition(":")[2], changes=[f"ENV {image.PATH}"]
            )

    def stop(self) -> None:
        self._close_client()
        if hasattr(self, "namespace"):
            self.namespace.close()

    def reboot(self, daemons: bool = True) -> None:
        """Kill all processes and empty what a reboot empties. daemons: start the daemons again."""
        self._close_client()
        self._containerd = self._dockerd = None
        deadline = time.monotonic() + _UP_S
        while running := self._processes():
            if time.monotonic() > deadline:
                raise MachineError(f"processes {running} do not end")
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        cgroups.remove(self.namespace.cgroup)
        self._unmount()
        self._mount_tmpfs()
        self._start_gpus()
        if daemons:
            self.start_daemons()

    def run(
        self, command: Sequence[str | Path], environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, where it finds the simulated driver."""
        return self.namespace.run(command, {**self.environment, **(environ or {})})

    @contextmanager
    def toolkit_config(self, text: str) -> Iterator[None]:
        """Give NVIDIA's runtime another configuration, and the first one again at the end."""
        self.namespace.write(host.RUNTIME_CONFIG, text)
        try:
            yield
        finally:
            self.namespace.write(host.RUNTIME_CONFIG, TOOLKIT)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "SIMGPU_DIR": str(self.sim_dir),
            "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu"),
            "DOCKER_HOST": f"unix://{SOCKET}",
        }

    def _processes(self) -> set[int]:
        """Return the machine's processes, except the first, which holds its namespaces. Processes
        of containers have PID namespaces of their own, but are in the machine's cgroup."""
        ours, found = os.readlink(f"/proc/{self.namespace.pid}/ns/pid"), set[int]()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has exited
                if os.readlink(path / "ns/pid") == ours:
                    found.add(int(path.name))
        for group in cgroups.named(self.namespace.cgroup):
            for listed in group.rglob("cgroup.procs"):
                with suppress(OSError):
                    found |= {int(pid) for pid in listed.read_text().split()}
        return found - {self.namespace.pid}

    def _install(self, directories: Sequence[Path]) -> None:
        for program in (file for each in directories for file in each.iterdir()):
            if os.access(program, os.X_OK):
                self.namespace.outside(Path("/usr/local/sbin", program.name)).unlink(
                    missing_ok=True
                )
                self.namespace.outside(Path("/usr/local/sbin", program.name)).symlink_to(program)
        # Layers of containers are overlays, whose upper layer cannot be on an overlay.
        for place in (DATA, host.CONTAINERD_ROOT):
            made = self.directory / "root" / place.name
            made.mkdir()
            self.namespace.outside(place).mkdir(parents=True, exist_ok=True)
            self.namespace.mount("--bind", made, place)
        self.namespace.write(Path("/etc/containerd/config.toml"), _CONTAINERD_CONFIG)
        self.namespace.write(_DAEMON_CONFIG, json.dumps(_RUNTIMES))

    def _mount_tmpfs(self) -> None:
        for place in _TMPFS:
            self.namespace.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", place)

    def _unmount(self) -> None:
        mounts = Path(f"/proc/{self.namespace.pid}/mounts").read_text().splitlines()
        ours = (*(f"{place}/" for place in _TMPFS), f"{DATA}/", f"{host.CONTAINERD_ROOT}/")
        for where in reversed([line.split()[1] for line in mounts]):
            if where.startswith(ours) or where in _TMPFS:
                self.namespace.run(["umount", "--lazy", where])

    def _start_gpus(self) -> None:
        gpus = [option for size in self._memory for option in ("--gpu", str(size))]
        up = [sys.executable, "-m", "simgpu", "up", "--dir", str(self.sim_dir)]
        done = self.namespace.run([*up, "--config", str(config.DEFAULT_FILE), *gpus])
        if done.returncode != 0:
            raise MachineError(f"simgpu up: {done.stdout}{done.stderr}")

    # --- the daemons ------------------------------------------------------------------------

    def start_daemons(self) -> None:
        self.start_containerd()
        self.start_dockerd()

    def start_containerd(self) -> None:
        self._containerd = self._start("containerd", ["containerd"])
        ask = ["ctr", "--address", _CONTAINERD, "version"]
        self._wait(self._containerd, "containerd", lambda: self.run(ask).returncode == 0)

    def start_dockerd(self, *options: str, wait: bool = True) -> None:
        """Start dockerd. wait: return when it answers. options: for example --live-restore."""
        seccomp = () if self.release.seccomp else ("--seccomp-profile=unconfined",)
        command = [
            *("dockerd", f"--host=unix://{SOCKET}", f"--containerd={_CONTAINERD}"),
            *(f"--data-root={DATA}", f"--cgroup-parent=/{self.namespace.cgroup}"),
            *("--exec-opt=native.cgroupdriver=cgroupfs", *_PRIVATE, *seccomp, *options),
        ]
        self._options = options
        self._dockerd = self._start("dockerd", command)
        if wait:
            self._wait(self._dockerd, "dockerd", self.answers)

    def kill_dockerd(self, number: int = signal.SIGKILL) -> None:
        self._close_client()
        if self._dockerd is not None and self._dockerd.running:
            self._dockerd.kill(number)
        # dockerd refuses to start while its pid file names a running process.
        self.namespace.outside(Path("/run/docker.pid")).unlink(missing_ok=True)

    def restart_dockerd(self, *options: str) -> None:
        """Kill dockerd, if it runs, and start it with these options."""
        self.kill_dockerd()
        self.start_dockerd(*options)

    @property
    def as_started(self) -> bool:
        """Whether dockerd runs without more options."""
        return self._dockerd is not None and self._dockerd.running and not self._options

    def answers(self) -> bool:
        with suppress(OSError, HTTPException):
            return pages.get(self.namespace.outside(SOCKET), "/_ping")[0] == HTTPStatus.OK
        return False

    @property
    def url(self) -> str:
        """The address at which processes outside of the machine reach the API."""
        return f"unix://{self.namespace.outside(SOCKET)}"

    @property
    def client(self) -> docker.DockerClient:
        """A client of the running dockerd."""
        if self._client is None:
            self._client = docker.DockerClient(self.url, version="auto")
        return self._client

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def log(self, name: str = "dockerd") -> Path:
        return self.directory / f"{name}.log"

    def _start(self, name: str, command: Sequence[str]) -> Inside:
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        if name == "dockerd":
            environ["LD_LIBRARY_PATH"] = str(self.release.ensure()[0])
        with self.log(name).open("a") as log:
            return self.namespace.start(command, log, subprocess.STDOUT, environ)

    def _wait(self, process: Inside, name: str, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _UP_S
        while not answers():
            if not process.running or time.monotonic() > deadline:
                raise MachineError(f"{name} did not come up:\n{tail(self.log(name))}")
            time.sleep(_POLL_S)
