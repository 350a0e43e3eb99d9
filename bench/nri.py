"""Measures the latency that the node agent adds to a container's creation. For comparison, the same
is measured with no plugin, and with plugins in Go.

A Go program (go/bench-nri) acts as the runtime, with the code of NRI that containerd runs too.
It calls the lanes, which are the compared setups, in turn, so that other work on the machine
affects all of them. The rival plugin in Go sends the agent's recorded adjustment and accepts every
validation, so its latency is that of NRI itself. The latency of a container without a share must
not depend on how many mounts the host has. A calibration loop shows the delays of a busy machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import yaml

from bench import Result
from bench.native import built
from gpuslice.contract import allocation, grants, names
from lab.node.namespace import Namespace
from nri_plugin.claims.store import ClaimStore, plugin_dir
from nri_plugin.policy.device_claims import ClaimedShare, Prepared, device_name
from nri_plugin.policy.model import Gpu
from simgpu import config
from tools import programs
from traces.host import BUILD, LIBRARY

_HARNESS: Final = Path(__file__).parent / "go" / "bench-nri"
_MOUNTS: Final = 40
_MEMORY_BYTES: Final = 20 << 30
_PAUSE_US: Final = 3000
"""The pause between two creations. A real runtime needs 50 ms or more for a container."""


@dataclass(frozen=True)
class Lane:
    """One of the compared setups. socket: the runtime's socket for plugins. plugins: how many must
    be connected. annotated: whether the pod holds a grant. started: whether to time the start.
    claimed: whether the container has a share of a ResourceClaim."""

    about: str
    socket: str
    plugins: int
    annotated: bool
    started: bool = False
    claimed: bool = False


LANES: Final[Mapping[str, Lane]] = {
    "none": Lane("no plugin", "none", 0, True),
    "go_minimal": Lane("a plugin in Go, one variable", "minimal", 1, True),
    "go_same": Lane("a plugin in Go, our adjustment, validated", "same", 1, True),
    "plain": Lane("gpuslice, a pod without a grant", "plain", 1, False),
    "granted": Lane("gpuslice, a grant, its files, validated", "gpuslice", 1, True),
    "claimed": Lane("gpuslice, the same by a ResourceClaim", "claims", 1, False, claimed=True),
}
BYSTANDERS: Final[Mapping[str, Lane]] = {
    "go_started": Lane("a plugin in Go, one variable", "minimal", 1, False, started=True),
    "bystander": Lane("gpuslice, a container without a share", "gpuslice", 1, False, started=True),
}
HOST_MOUNTS: Final = (30, 3000)
_ALL: Final = {**LANES, **BYSTANDERS}
_OURS: Final = "granted"
_RIVAL: Final = "go_same"
_CALIBRATION: Final = "calibration"

_MOUNT: Final = """
import ctypes, pathlib, sys
libc, MS_BIND = ctypes.CDLL(None, use_errno=True), 4096
here = pathlib.Path(sys.argv[1])
nothing = here / "nothing"
nothing.mkdir(exist_ok=True)
there = len(pathlib.Path("/proc/self/mountinfo").read_text().splitlines())
for number in range(there, int(sys.argv[2])):
    place = here / str(number)
    place.mkdir()
    if libc.mount(bytes(nothing), bytes(place), None, MS_BIND, None):
        raise OSError(ctypes.get_errno(), "mount")
"""

Times = Mapping[str, Sequence[int]]
"""The nanoseconds of each call, by lane."""


class Stage:
    """The program bench-nri, the agent and its rivals, in namespaces that end at the exit."""

    def __init__(self, namespace: Namespace, program: Path) -> None:
        self._namespace = namespace
        self._program = program
        self._directory = namespace.directory
        self._adjustment = self._directory / "adjustment"
        self._mounts = self._directory / "mounts"
        self._gpu = config.load(config.DEFAULT_FILE).gpus[0]

    def __enter__(self) -> Stage:
        plan = self._directory / "plan.json"
        plan.write_text(json.dumps(self._plan()))
        command, pipe = [str(self._program), "measure", str(plan)], subprocess.PIPE
        self._runtime = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._runtime.stdout is not None
        if self._runtime.stdout.readline() != "listening\n":
            raise RuntimeError("the runtime of the bench does not come up; see above")
        self._start_simgpu()
        # One agent for each: an agent that is called more often finds more in the caches.
        for name in ("gpuslice", "plain", "claims"):
            self._start_agent(name)
        self.measure([_OURS], 1, save=True)
        for socket, file in (("minimal", "-"), ("same", str(self._adjustment))):
            self._start("rival", [self._program, "plugin", self._socket(socket), file])
        self.measure(list(_ALL), 50)
        return self

    def __exit__(self, *_error: object) -> None:
        self._runtime.kill()
        self._runtime.communicate()
        # This unmounts all at once. Closing the namespace would run `umount` for each.
        self._namespace.run(["umount", "--lazy", self._mounts])

    def measure(self, lanes: Sequence[str], count: int, save: bool = False) -> Times:
        assert self._runtime.stdin is not None and self._runtime.stdout is not None
        wanted = {"Lanes": lanes, "Count": count, "PauseUs": _PAUSE_US, "Save": save}
        self._runtime.stdin.write(f"{json.dumps(wanted)}\n")
        self._runtime.stdin.flush()
        line = self._runtime.stdout.readline()
        if not line:
            log = (self._directory / "agent.log").read_text()[-2000:]
            raise RuntimeError(f"the runtime of the bench ended; see above. The agent:\n{log}")
        times: Times = json.loads(line)
        return times

    def mount(self, count: int) -> None:
        """Add mounts until the host has that many."""
        if not self._mounts.exists():
            self._mounts.mkdir()
            self._namespace.run(["mount", "-t", "tmpfs", "mounts", self._mounts])
        done = self._namespace.run([sys.executable, "-c", _MOUNT, self._mounts, str(count)])
        if done.returncode != 0:
            raise RuntimeError(f"{count} mounts: {done.stderr}")

    def _socket(self, name: str) -> Path:
        return self._directory / f"{name}.sock"

    def _plan(self) -> Mapping[str, Any]:
        half = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}
        resources = {**half, names.RESOURCE_MEMORY: _MEMORY_BYTES}
        entry = allocation.DeviceEntry(self._gpu.minor, resources, self._gpu.uuid)
        grant = grants.GpuGrant(self._gpu.uuid, self._gpu.minor, _MEMORY_BYTES, 50)
        return {
            "Lanes": [
                {"name": name, **asdict(lane), "socket": str(self._socket(lane.socket))}
                for name, lane in _ALL.items()
            ],
            "Annotations": {
                names.ANNOTATION_DEVICE_ALLOCATED: allocation.encode(
                    allocation.Allocation({names.DEVICE_TYPE_GPU: (entry,)})
                ),
                names.ANNOTATION_GRANTS: grants.encode({"main": [grant]}),
            },
            "CDI": f"{names.CDI_KIND_CLAIM}={self._claim().shares[0].name}",
            "Labels": {names.LABEL_ISOLATION_PROVIDER: names.ISOLATION_PROVIDER},
            "Save": str(self._adjustment),
            "Bundles": str(self._directory / "state/io.containerd.runtime.v2.task/k8s.io"),
        }

    def _claim(self) -> Prepared:
        """Return the claim that the agent for claims has prepared before its start."""
        device = device_name(Gpu(self._gpu.uuid, self._gpu.minor, 0))
        share = ClaimedShare("claim-01234567", "gpu", device, "01234567", _MEMORY_BYTES, 50)
        return Prepared("claim", "default", "bench", ["uid-claimed"], [share])

    def _start_simgpu(self) -> None:
        sim = self._directory / "sim"
        up: list[str | Path] = [sys.executable, "-m", "simgpu", "up", "--dir", sim]
        done = self._namespace.run([*up, "--config", config.DEFAULT_FILE])
        if done.returncode != 0:
            raise RuntimeError(f"simgpu does not come up: {done.stdout}{done.stderr}")
        specs = self._directory / "cdi"
        specs.mkdir()
        (spec,) = (sim / "cdi").iterdir()
        (specs / "nvidia.yaml").write_text(_with_mounts(json.loads(spec.read_text()), _MOUNTS))

    def _start_agent(self, name: str) -> None:
        # On a node this directory is under /run, which is a tmpfs too.
        run_dir = self._directory / f"run-{name}"
        run_dir.mkdir()
        self._namespace.run(["mount", "-t", "tmpfs", "run", run_dir])
        if name == "claims":
            place = plugin_dir(self._namespace.outside(run_dir))
            ClaimStore(place, self._directory / "cdi").put(self._claim())
        command: list[str | Path] = [sys.executable, "-m", "nri_plugin"]
        command += ["--nri-socket", self._socket(name), "--cdi-dir", self._directory / "cdi"]
        command += ["--library", LIBRARY, "--run-dir", run_dir, "--kubelet-dir", run_dir]
        command += ["--containerd-state", self._directory / "state"]
        sim = str(self._directory / "sim")
        driver = {"SIMGPU_DIR": sim, "LD_LIBRARY_PATH": str(BUILD / "lib" / "simgpu")}
        self._start("agent", command, driver)

    def _start(
        self, name: str, command: Sequence[str | Path], environ: Mapping[str, str] | None = None
    ) -> None:
        with (self._directory / f"{name}.log").open("a") as log:
            self._namespace.start(command, log, log, environ)


def _with_mounts(spec: dict[str, Any], count: int) -> str:
    """Return simgpu's CDI spec in the form of nvidia-ctk's: YAML, with a mount per library."""
    mounts = spec["containerEdits"].setdefault("mounts", [])
    for number in range(len(mounts), count):
        path = f"/usr/lib/x86_64-linux-gnu/libnvidia-part-{number}.so.580.65.06"
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        # The agent requires that a mounted file exists, so each mount has the same file.
        host = mounts[0]["hostPath"]
        mounts.append({"hostPath": host, "containerPath": path, "options": options})
    text: str = yaml.safe_dump(spec)
    return text


@contextmanager
def _busy() -> Iterator[None]:
    """Keep every processor busy with other work."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    time.sleep(1)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def result(runs: Mapping[str, Times], bystanders: Mapping[int, Times]) -> Result:
    """Make the table. runs: idle and busy machine. bystanders: times by number of host mounts."""
    heads = (f"{kind} {what}" for kind in runs for what in ("p50", "p99", "x Go"))
    found = Result(("CreateContainer, microseconds", *heads))
    abouts = {name: lane.about for name, lane in LANES.items()}
    for name, about in {**abouts, _CALIBRATION: "calibration loop"}.items():
        cells: list[str] = []
        for kind, times in runs.items():
            p50_us, p99_us = _microseconds(times[name])
            found.add(f"{kind}_{name}_p50_us", round(p50_us, 1))
            found.add(f"{kind}_{name}_p99_us", round(p99_us, 1))
            per_go = p50_us / _microseconds(times[_RIVAL])[0]
            cells += [_shown(p50_us), _shown(p99_us), f"{per_go:.2f}" if name in LANES else ""]
            if name == _OURS:
                found.add(f"{kind}_{_OURS}_per_{_RIVAL}", round(per_go, 2), at_most=3.0)
        found.rows.append((about, *cells))
    for mounts, times in bystanders.items():
        go_us, ours_us = (_microseconds(times[name])[0] for name in BYSTANDERS)
        found.add(f"go_started_{mounts}_p50_us", round(go_us, 1))
        found.add(f"bystander_{mounts}_mounts_p50_us", round(ours_us, 1))
        found.add(f"bystander_{mounts}_mounts_per_go", round(ours_us / go_us, 2), at_most=2.5)
        for name, lane in BYSTANDERS.items():
            p50_us, p99_us = _microseconds(times[name])
            cells = [_shown(p50_us), _shown(p99_us), f"{p50_us / go_us:.2f}"]
            about = f"{lane.about}, started, {mounts:,} mounts"
            found.rows.append((about, *cells, *[""] * 3 * (len(runs) - 1)))
    return found


def _microseconds(times: Sequence[int]) -> tuple[float, float]:
    """Return p50 and p99 in microseconds."""
    return median(times) / 1e3, quantiles(times, n=100)[98] / 1e3


def _shown(us: float) -> str:
    return f"{us:,.0f}" if us >= 10 else f"{us:.1f}"


def run(quick: bool) -> Result:
    count = 300 if quick else 2000
    built("simgpu_nvml", "simgpu_cuda", "simgpu_smi")
    program = programs.ours(_HARNESS)
    with ExitStack() as stack:
        namespace = Namespace()
        stack.callback(namespace.close)
        stage = stack.enter_context(Stage(namespace, program))
        idle = stage.measure(list(LANES), count)
        with _busy():
            busy = stage.measure(list(LANES), count)
        bystanders = {}
        for mounts in HOST_MOUNTS:
            stage.mount(mounts)
            bystanders[mounts] = stage.measure(list(BYSTANDERS), count)
    return result({"idle": idle, "busy": busy}, bystanders)
