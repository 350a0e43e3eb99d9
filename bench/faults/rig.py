"""Measures a cell of the fault matrix, with one containerd and an agent with injected faults.

Every container is real. It is created over CRI, with the annotations of a pod with a grant, and a
probe runs in it. Then the fault is removed, and containers are created until one is limited.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.faults import outcome
from bench.faults.cases import Event, Strike
from bench.faults.outcome import Cell, Kind, Outcome
from gpuslice.contract import names
from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import Container, CriError, Pod, Process
from lab.node.lab import Lab, LabError
from tools.progress import step

_GRANT: Final = 4 << 30
_CONTAINER: Final = "main"
_LARGE: Final = "/opt/large"
_LARGE_MOUNTS: Final = 1550
_LARGE_PODS: Final = 6
_DETOUR: Final = "/." * 970
"""Lengthens a host path without changing its target. Paths in the container stay short, because
validating plugins receive these twice in one message, which has a maximum size too."""


class Rig:
    """One containerd with an agent, which this starts in the lab. probe: cuda-probe's path.

    naive: run the control. Then the runtime injects the GPU by CDI, as for a device plugin. Pods
    require no plugin, and the agent takes no measure against its own failure. options: the agent's.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        naive: bool = False,
        probe: str = "cuda-probe",
        options: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._lab = lab
        self._look_inside = ("sh", "-c", f"ls /dev/simgpu 2>/dev/null; exec {probe}")
        self._naive = naive
        self._fault = lab.directory / "fault"
        self._program: Sequence[str | Path] = (
            *("bench.faults.agent", self._fault),
            *(["--naive"] * naive),
        )
        devices = [f"{names.CDI_KIND}={gpu.uuid}" for gpu in lab.gpus] if naive else []
        for spec in (lab.sim_dir / "cdi").iterdir() if naive else ():
            shutil.copy(spec, lab.containerd.paths.cdi)
        self._process = Process(PYTHON_IMAGE, cdi=devices)
        grant = {_CONTAINER: [(0, _GRANT, 10)]}
        self._annotations = {
            name: value
            for name, value in lab.share(grant).items()
            if not (naive and name.startswith(names.ANNOTATION_REQUIRED_PLUGINS))
        }

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the agent, and remove the CDI specs by which the runtime injects a GPU."""
        self._lab.stop_agent()
        for spec in self._lab.containerd.paths.cdi.iterdir():
            spec.unlink()

    def perform(self, injection: Injection) -> Cell:
        """Inject the fault, and return its cell, with one container that ran before the fault."""
        outcomes: list[Outcome] = []
        after = self._heal()
        validates = self._lab.release.has_validator and not self._naive
        with self._pod("before") as before:
            running = before.run(_CONTAINER, self._process)
            for event in injection.events:
                if injection.strike and (validates or event is not Event.VALIDATE):
                    self._fault.write_text(f"{injection.strike.value} {event.value}")
                    outcomes.append(self.make())
                    after += self._heal()
            for scene in injection.scenes:
                outcomes += scene(self)
                after += self._heal()
            outcomes.append(self._probe(running))
        return Cell(outcomes, after)

    # --- one container ----------------------------------------------------------------------

    def _pod(self, name: str) -> AbstractContextManager[Pod]:
        return self._lab.pod(name, self._annotations)

    def make(self, meanwhile: Callable[[], None] | None = None) -> Outcome:
        """Create, start and probe a container. meanwhile: called before the start."""
        with self._pod("cell") as pod:
            try:
                container = pod.create(_CONTAINER, self._process)
                if meanwhile is not None:
                    meanwhile()
                container.start()
            except CriError as error:
                return outcome.refusal(str(error))
            return self._probe(container)

    def _probe(self, container: Container) -> Outcome:
        done = container.exec(self._look_inside)
        *devices, seen = done.out.splitlines()
        return outcome.inside(devices, json.loads(seen), _GRANT)

    # --- faults -----------------------------------------------------------------------------

    def never_connected(self) -> list[Outcome]:
        self._lab.stop_agent()
        return [self.make()]

    def killed_idle(self) -> list[Outcome]:
        """Kill the agent before a container's creation, then between a creation and a start."""

        def kill() -> None:
            self._lab.stop_agent(signal.SIGKILL)

        kill()
        first = self.make()
        self._heal()
        return [first, self.make(meanwhile=kill)]

    def agent_restarted(self) -> list[Outcome]:
        """Create containers while the agent restarts, and restart it between creation and start."""

        def restart() -> None:
            self._lab.stop_agent()
            self._start_agent()

        return [*self._while(restart), self.make(meanwhile=restart)]

    def containerd_restarted(self) -> list[Outcome]:
        """Restart containerd by SIGTERM, then by SIGKILL. The agent stands still (SIGSTOP) until
        the first container was tried."""
        return [*self._restarted_by(signal.SIGTERM), *self._restarted_by(signal.SIGKILL)]

    def _restarted_by(self, number: int) -> list[Outcome]:
        restart = partial(self._restart_containerd, number)
        ready = self._lab.times_ready()
        self._lab.signal_agent(signal.SIGSTOP)
        restart()
        first = self.make()
        self._lab.signal_agent(signal.SIGCONT)
        registering = self._until(lambda: self._lab.times_ready() > ready)
        return [first, *registering, self.make(meanwhile=restart)]

    def large_answer(self) -> list[Outcome]:
        """Give the GPU's CDI spec so many mounts that the agent's answer has 3 MB. NRI allows
        4 MiB. The runtime closes the connection if an answer is split wrongly into frames."""
        (spec,) = (self._lab.sim_dir / "cdi").iterdir()
        before = spec.read_bytes()
        document = json.loads(before)
        document["containerEdits"]["mounts"] += [
            {
                "hostPath": f"{_DETOUR}{spec}",
                "containerPath": f"{_LARGE}/{index:05}",
                "options": ["bind", "ro"],
            }
            for index in range(_LARGE_MOUNTS)
        ]
        spec.write_text(json.dumps(document))
        try:
            with self._pod("large") as pod:
                container = pod.run(_CONTAINER, self._process)
                count = container.exec(["sh", "-c", f"ls {_LARGE} | grep -c ."]).out.strip()
                if count != str(_LARGE_MOUNTS):
                    raise LabError(f"{count} of {_LARGE_MOUNTS} mounts are in the container")
                return [self._probe(container)]
        finally:
            spec.write_bytes(before)

    def pieces(self) -> list[Outcome]:
        """Restart the agent while there are more pods than fit into one message."""
        annotations = {**self._annotations, "example.com/large": "x" * 900_000}
        with ExitStack() as stack:
            running = []
            for index in range(_LARGE_PODS):
                pod = stack.enter_context(self._lab.pod(f"large-{index}", annotations))
                running.append(pod.run(_CONTAINER, self._process))
            self._lab.stop_agent()
            self._start_agent()
            metrics = pages.get(self._lab.agent_http, "/metrics")[1]
            synchronized = re.search(r"^gpuslice_nri_synchronize_pods (\S+)", metrics, re.MULTILINE)
            if synchronized is None or float(synchronized[1]) < _LARGE_PODS:
                raise LabError("the agent has not received all pods")
            return [self._probe(container) for container in running]

    def _restart_containerd(self, number: int) -> None:
        self._lab.containerd.stop(number)
        self._lab.containerd.start()
        self._lab.cri.version()

    def _while(self, work: Callable[[], None]) -> list[Outcome]:
        thread = threading.Thread(target=work)
        thread.start()
        outcomes = self._until(lambda: not thread.is_alive())
        thread.join()
        return outcomes

    def _until(self, over: Callable[[], bool]) -> list[Outcome]:
        """Create containers one after the other, at least one, until the condition holds."""
        outcomes = [self.make()]
        while not over():
            outcomes.append(self.make())
        return outcomes

    # --- the agent --------------------------------------------------------------------------

    def _start_agent(self) -> None:
        self._lab.start_agent(program=self._program, options=self._options)

    def _heal(self) -> list[Outcome]:
        """Remove the fault, and start the agent if it does not run. Create containers until one is
        limited, at most for 30 s, and return their outcomes.

        The first may fail, because the runtime has not registered the agent yet.
        """
        self._fault.write_text("")
        if not self._lab.agent_running:
            self._start_agent()
        outcomes = [self.make()]
        deadline = time.monotonic() + 30.0
        while outcomes[-1].kind is not Kind.LIMITED and time.monotonic() < deadline:
            outcomes.append(self.make())
        return outcomes


@dataclass(frozen=True, slots=True)
class Injection:
    """One row: `strike` is injected at each of `events`, then the scenes are performed."""

    title: str
    strike: Strike | None = None
    events: Sequence[Event] = tuple(Event)
    scenes: Sequence[Callable[[Any], list[Outcome]]] = ()


INJECTIONS: Final[Mapping[str, Injection]] = {
    "never": Injection("never connected", scenes=[Rig.never_connected]),
    "hang": Injection("hang", Strike.HANG),
    "crash": Injection("crash in the handler", Strike.CRASH),
    "killed": Injection(
        "killed between events",
        Strike.KILL_AFTER,
        (Event.CREATE, Event.VALIDATE),
        [Rig.killed_idle],
    ),
    "cut": Injection("connection cut mid-frame", Strike.CUT),
    "agent": Injection("agent restarted", scenes=[Rig.agent_restarted]),
    "containerd": Injection("containerd restarted", scenes=[Rig.containerd_restarted]),
    "error": Injection("error answer", Strike.ERROR),
    "slow": Injection("slow handler", Strike.SLOW),
}
"""The rows by their name on the command line, in the order of the table."""
SIZES: Final[Mapping[str, Injection]] = {
    "answer": Injection("an answer of 3 MB", scenes=[Rig.large_answer]),
    "pieces": Injection("Synchronize in pieces", scenes=[Rig.pieces]),
}
"""Rows of a separate table: large messages, which break plugins with careless protocol code."""
ROWS: Final[Mapping[str, Injection]] = {**INJECTIONS, **SIZES}


def column(rig: Rig, title: str, injections: Mapping[str, Injection]) -> Mapping[str, Cell]:
    """Return a cell for each injection. Print a line for each when it is complete."""
    cells = {}
    for name, injection in injections.items():
        with step(f"{title}: {injection.title}") as shown:
            cells[name] = cell = rig.perform(injection)
            shown.result = cell.summary
            shown.failed = bool(cell.unprotected) or not cell.recovers
    return cells
