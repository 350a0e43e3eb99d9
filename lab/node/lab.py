"""The whole lab: simulated GPUs, a private containerd, the node agent. Tests create pods in it.

    with Lab() as lab:
        with lab.pod("a", lab.share({"main": [(0, 20 << 30, 50)]})) as pod:
            pod.run("main", Process(PYTHON_IMAGE))

The agent runs as a separate program (`python -m nri_plugin`), as on a node. The interface can stop
and start the agent and containerd, because tests observe what happens then.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final

from gpuslice.contract import allocation, grants, names, required_plugins
from gpuslice.contract.overhead import CODE_BYTES
from lab import pages, tail
from lab.node import cgroups
from lab.node.catalogue import Catalogue
from lab.node.containerd import Containerd, ContainerdError
from lab.node.containerd_config import Options
from lab.node.cri import ORDINARY, Container, Cri, CriError, Pod, Sandbox
from lab.node.host import STANDARD, Host
from lab.node.namespace import Inside, Namespace, NamespaceError, children
from nri_plugin.gpu import record
from simgpu import config
from simgpu.state_dir import StateDir
from tools import building, programs
from tools.building import ProgramsError
from tools.images import oci
from tools.images.oci import Image
from tools.programs import DEFAULT, Release

_ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = _ROOT / "build" / "dev"
LIBRARY: Final = BUILD / "lib" / names.FILE_LIBRARY
CLUSTER_FILES: Final = {
    f"/usr/bin/{name}": (BUILD / "bin" / name, 0o755) for name in ("cuda-probe", "cuda-load")
}
"""Programs in a cluster's images that need no Python. cuda-probe allocates all memory that it may,
and cuda-load keeps a GPU busy."""
STATIC_PROBE: Final = BUILD / "bin" / "cuda-probe-static"
"""cuda-probe with the simulated driver inside."""
_READY: Final = "ready:"
_NEW_DRIVER: Final = 'driver_version = "615.71.01"\ncuda_version = 13040\n'
DRIVER_LIMITS: Final = ("--memory-limits", "auto", "--cgroup-root", str(cgroups.HIERARCHY))
"""Options of an agent in a lab with the new driver."""
_WAIT_S: Final = 30.0

Share = tuple[int, int, int]
"""A GPU's index, and bytes of its memory and percent of its compute."""


class LabError(RuntimeError):
    """A part of the lab does not start. The text ends with that part's output."""


FAILURES: Final = (LabError, CriError, ContainerdError, NamespaceError, ProgramsError)
"""Exceptions of a lab that cannot continue. Their texts are for the lab's user."""


class Lab:
    """A context manager: all parts run until its exit, which leaves nothing on the machine.

    memory_bytes: the size of each GPU. files: added to every image (path inside: file here, mode).
    release, options: containerd's release and configuration. load: whether to import the images at
    the start; if not, `load` imports them. on_host: simulate a host, of this kind (host.py) or of
    the standard kind (True), with its own network. parent: see Namespace. new_driver: simulate a
    driver that limits the memory of control groups (release 615).
    """

    def __init__(
        self,
        memory_bytes: Sequence[int] = (40 << 30,),
        files: Mapping[str, tuple[Path, int]] | None = None,
        library: Path = LIBRARY,
        release: Release = DEFAULT,
        options: Options | None = None,
        load: bool = True,
        on_host: bool | Host = False,
        parent: Path | None = None,
        new_driver: bool = False,
    ) -> None:
        self._new_driver = new_driver
        self._simulated = config.load(config.DEFAULT_FILE).with_gpus(memory_bytes)
        self.gpus = self._simulated.gpus
        self.context_bytes = self._simulated.context_overhead_bytes
        self.floor_bytes = self.context_bytes + CODE_BYTES
        self._memory = memory_bytes
        self._files = files or {}
        self.release = release
        self._options = options
        self.library = library
        self._loads = load
        self._host = STANDARD if on_host is True else on_host or None
        self._parent = parent
        self._agent: Inside | None = None
        self._newcomer: Inside | None = None

    def __enter__(self) -> Lab:
        self.namespace = Namespace(self._host is not None, self._parent)
        try:
            self._open()
        except BaseException:
            self.namespace.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cri.close()
        self.namespace.close()

    def _open(self) -> None:
        self.directory = self.namespace.directory
        self.sim_dir = self.directory / "sim"
        run = self.directory / "run"
        run.mkdir()
        self.namespace.mount("-t", "tmpfs", "run", run)  # a node's /run is a tmpfs, too
        self.run_dir = run / names.PLUGIN_NAME
        self.store_dir = self.run_dir / names.DIR_STORE
        built = programs.ensure(release=self.release)
        installed = None
        if self._host is not None:
            self._host.make(self.namespace, BUILD, self.sim_dir, self._simulated, built.directory)
            config = self._host.config(self._options or Options())
            installed = self._host.paths(self.directory), config
        self.start_gpus()
        self.containerd = Containerd(self.namespace, built, self.release, self._options, installed)
        self.containerd.start()
        if self._loads:
            self.load(Catalogue(self._files).images())
        socket = self.namespace.outside(self.containerd.paths.socket)
        self.cri = Cri(socket, self.directory / "pods", self.namespace.cgroup)
        self.version = self.cri.version()

    def load(self, wanted: Sequence[Image]) -> Path:
        """Build images that the cache lacks, and import all into containerd. Return their archive.
        Raises ImageError or ContainerdError."""
        archive = oci.archive(wanted, building.cache_dir() / "images")
        self.containerd.import_image(archive)
        return archive

    # --- pods -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def pod(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        of: Sandbox = ORDINARY,
    ) -> Iterator[Pod]:
        """Run a pod during the context, then remove it."""
        pod = self.cri.run_pod(name, annotations, labels, of.namespace, of)
        try:
            yield pod
        finally:
            pod.remove()

    def allocated(self, shares: Sequence[Share]) -> dict[str, str]:
        """Return Koordinator's annotation, and no other, for a pod that holds those shares."""
        entries = tuple(
            allocation.DeviceEntry(
                self.gpus[index].minor,
                {
                    names.RESOURCE_CORE: core_percent,
                    names.RESOURCE_MEMORY: memory_bytes,
                    names.RESOURCE_MEMORY_RATIO: memory_bytes * 100 // self._memory[index],
                },
                self.gpus[index].uuid,
            )
            for index, memory_bytes, core_percent in shares
        )
        written = allocation.encode(allocation.Allocation({names.DEVICE_TYPE_GPU: entries}))
        return {names.ANNOTATION_DEVICE_ALLOCATED: written}

    def share(self, containers: Mapping[str, Sequence[Share]]) -> dict[str, str]:
        """Return all annotations that the scheduler writes with the Binding. containers: the shares
        of each container."""
        granted = {
            name: [
                grants.GpuGrant(self.gpus[index].uuid, self.gpus[index].minor, size, core)
                for index, size, core in shares
            ]
            for name, shares in containers.items()
        }
        together: dict[int, Share] = {}
        for index, size, core in (share for shares in containers.values() for share in shares):
            _, size_so_far, core_so_far = together.get(index, (index, 0, 0))
            together[index] = (index, size + size_so_far, core + core_so_far)
        return {
            **self.allocated(list(together.values())),
            names.ANNOTATION_GRANTS: grants.encode(granted),
            **required_plugins.binding_annotations(containers),
        }

    # --- the GPUs --------------------------------------------------------------------------

    @property
    def gpus_pid(self) -> int | None:
        """Process ID of the daemon that simulates the GPUs; None if it has exited."""
        return StateDir.at(self.sim_dir).daemon_pid()

    def start_gpus(self) -> None:
        """Start the daemon that simulates the GPUs, unless it runs. Raises LabError. A new daemon
        has no allocations, and existing containers cannot reach it."""
        gpus = [option for size in self._memory for option in ("--gpu", str(size))]
        up: list[str | Path] = [sys.executable, "-m", "simgpu", "up", "--dir", self.sim_dir]
        file = config.DEFAULT_FILE
        if self._new_driver:
            file = self.directory / "driver.toml"
            file.write_text(f'{_NEW_DRIVER}cgroup_root = "{cgroups.HIERARCHY}"\n')
        done = self.namespace.run([*up, "--config", file, *gpus])
        if done.returncode != 0:
            raise LabError(f"simgpu up: {done.stdout}{done.stderr}")

    # --- the node agent ---------------------------------------------------------------------

    @property
    def agent_log(self) -> Path:
        return self.directory / "agent.log"

    @property
    def agent_http(self) -> Path:
        """The agent's socket for /healthz, /readyz and /metrics."""
        return self.directory / "agent.sock"

    @property
    def agent_running(self) -> bool:
        return self._agent is not None and self._agent.running

    @property
    def agent_pid(self) -> int:
        """The running agent's process ID outside of the lab's PID namespace."""
        assert self._agent is not None
        return children(self._agent.entering.pid)[0]

    def start_agent(
        self,
        *,
        strict: bool = False,
        cdi_dir: Path | None = None,
        options: Sequence[str | Path] = (),
        program: Sequence[str | Path] = ("nri_plugin",),
        limiter: Sequence[str | Path] = (),
    ) -> None:
        """Start the agent. Return when it is ready. Raises LabError.

        cdi_dir: directory of CDI specs; by default the simulated driver's. options: the agent's.
        program: the module to run, and its arguments before `options`. limiter: a command that
        runs the agent with limits.
        """
        ready = self.times_ready()
        self._agent = self._new_agent(
            program, cdi_dir, [*options, *(["--strict"] * strict)], limiter
        )
        self.wait_until(lambda: self.times_ready() > ready or not self.agent_running, "the agent")
        if not self.agent_running:
            raise LabError(f"the node agent ended:\n{tail(self.agent_log)}")
        self._wait_for_context()

    def _wait_for_context(self) -> None:
        """Wait until the agent has measured a context's size, soon after it is ready. Return early
        if the agent is not ready, or cannot measure because containers hold the GPUs."""
        file, started_s = self.namespace.outside(self.run_dir / record.FILE), time.monotonic()
        while not (file.exists() and json.loads(file.read_text())["contexts"]):
            waited_s = time.monotonic() - started_s
            if waited_s > _WAIT_S or (waited_s > 2.0 and not self._measures()):
                return
            time.sleep(0.05)

    def _measures(self) -> bool:
        with contextlib.suppress(OSError, HTTPException):
            ready, _ = pages.get(self.agent_http, "/readyz")
            _, metrics = pages.get(self.agent_http, "/metrics")
            return ready == HTTPStatus.OK and "gpuslice_containers_with_grant 0.0" in metrics
        return False

    def start_agent_beside(self) -> None:
        """Start a second agent, as in a rolling update. `stop_agent` then ends the first."""
        self._newcomer = self._new_agent()

    def _new_agent(
        self,
        program: Sequence[str | Path] = ("nri_plugin",),
        cdi_dir: Path | None = None,
        options: Sequence[str | Path] = (),
        limiter: Sequence[str | Path] = (),
    ) -> Inside:
        paths = self.containerd.paths
        command: list[str | Path] = [*limiter, sys.executable, "-m", *program]
        command += ["--nri-socket", paths.nri_socket, "--containerd-state", paths.state]
        command += ["--run-dir", self.run_dir]
        command += ["--library", self.library, "--cdi-dir", cdi_dir or self.sim_dir / "cdi"]
        command += ["--http", f"unix:{self.agent_http}", *options]
        with self._agent_out.open("a") as out, self.agent_log.open("a") as log:
            return self.namespace.start(command, out, log, self.driver_environment())

    def stop_agent(self, number: int = signal.SIGTERM) -> None:
        if self._agent is not None and self._agent.running:
            self._agent.kill(number)
        self._agent, self._newcomer = self._newcomer, None

    def signal_agent(self, number: int) -> None:
        if self._agent is not None:
            self._agent.signal(number)

    def times_ready(self) -> int:
        """Return how often an agent has registered and synchronised since the lab began."""
        if not self._agent_out.exists():
            return 0
        return sum(line.startswith(_READY) for line in self._agent_out.read_text().splitlines())

    def agent_ready_line(self) -> str:
        """Return the agent's last line on standard output, without the prefix "ready:"."""
        return self._agent_out.read_text().splitlines()[-1].removeprefix(_READY).strip()

    @property
    def _agent_out(self) -> Path:
        return self.directory / "agent.out"

    # --- helpers ----------------------------------------------------------------------------

    def driver_environment(self) -> dict[str, str]:
        """Return the variables with which a program on the simulated host finds its driver."""
        libraries = BUILD / "lib" / ("simgpu-13040" if self._new_driver else "simgpu")
        return {"SIMGPU_DIR": str(self.sim_dir), "LD_LIBRARY_PATH": str(libraries)}

    def memory_limits(self, container: Container, *set_mib: int) -> str:
        """Return what nvidia-smi on the host prints about the container's limit on GPU 0. set_mib:
        sets this limit first."""
        tops = cgroups.named(self.namespace.cgroup)
        ours = [each for each in tops if each.is_relative_to(cgroups.HIERARCHY)]
        (group,) = (found for top in ours for found in top.rglob(f"*{container.id}*"))
        limits = ("--set", "--soft-limit", "0", "--hard-limit", *map(str, set_mib))
        command: list[str | Path] = [BUILD / "bin/nvidia-smi", "memory-limits"]
        command += [*(limits if set_mib else ("--get",)), "-n", group, "-i", "0"]
        return self.namespace.run(command, self.driver_environment()).stdout

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll `condition`. The longer it takes, the longer is the pause after it. So a condition
        that starts pods does not keep the processors busy."""
        deadline = time.monotonic() + _WAIT_S
        asked_s = time.monotonic()
        while not condition():
            if time.monotonic() > deadline:
                log = tail(self.agent_log) if self.agent_log.exists() else ""
                raise LabError(f"waited {_WAIT_S:.0f} s in vain for {what}\n{log}")
            took_s = time.monotonic() - asked_s
            time.sleep(min(max(0.02, 4 * took_s), 1.0))
            asked_s = time.monotonic()
