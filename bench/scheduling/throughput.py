"""Measures pods per second of kube-scheduler with the extender, and of stock kube-scheduler without
and with claims. Their runs alternate, so that other work on the machine affects all of them.

Stock kube-scheduler counts koordinator.sh resources as totals of a node, and the extender is
stopped (SIGSTOP) meanwhile. With claims, kube-controller-manager makes the claims in the measured
time. A run begins when the programs are idle, because kube-scheduler lists
all pods for seconds after its start. Then both programs are stopped while the pods are created. The
measured time begins when the programs continue, and ends with the last Binding.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import yaml

from bench.scheduling import cpu_s, fleets, say, stage
from gpuslice.contract import names
from gpuslice.kube.client import Kube
from lab.cluster.controlplane import ControlPlane
from lab.cluster.installation import Installation
from lab.cluster.supervised import Process

OURS: Final = "with us"
STOCK: Final = "stock"
CLAIMS: Final = "claims"
BINDING: Final = "POST pods/binding"
EVENT: Final = "POST events"
CONDITION: Final = "PATCH pods/status"
NAMED: Final = frozenset(
    {BINDING, EVENT, CONDITION, "POST pods", "PUT leases", "PATCH leases", "POST leases"}
)
"""Writes that the figure `others` leaves out: those with a figure of their own, the creation of
pods by the benchmark, and renewals of Leases, which do not depend on bindings."""
_READY_S: Final = 120.0
_REST_S: Final = 1.0
_AT_REST: Final = 0.2
"""The part of a processor that idle programs may use, for example to renew Leases."""


@dataclass
class Runs:
    """The figures of all runs, by kind (OURS, STOCK, CLAIMS).

    pods_per_s: one value per run. spent_ms: processor time per pod, by program, for each run. idle:
    the idle part of all processors' time. bound: number of pods. writes: numbers, by request.
    """

    pods_per_s: dict[str, list[float]] = field(default_factory=dict)
    spent_ms: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    idle: dict[str, list[float]] = field(default_factory=dict)
    bound: Counter[str] = field(default_factory=Counter)
    writes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def median(self, kind: str) -> float:
        return median(self.pods_per_s[kind])

    def spend(self, kind: str, spent_s: Mapping[str, float], took_s: float, pods: int) -> None:
        """Record a run. spent_s: each program's processor time while `pods` were bound."""
        by_program = self.spent_ms.setdefault(kind, {})
        for program, seconds in spent_s.items():
            by_program.setdefault(program, []).append(seconds / pods * 1e3)
        used = sum(spent_s.values()) / took_s / (os.cpu_count() or 1)
        self.idle.setdefault(kind, []).append(1 - used)

    def written(self, kind: str, what: str) -> float:
        """Return the writes per bound pod, over all runs."""
        return self.writes[kind][what] / self.bound[kind]

    def other_writes(self, kind: str) -> Mapping[str, float]:
        """Return the writes per bound pod by request, without those in NAMED."""
        return {what: self.written(kind, what) for what in sorted(self.writes[kind].keys() - NAMED)}


def stock_config(ours: Path, path: Path) -> Path:
    """Write a copy of the configuration without the extender, and with the default profile."""
    config = yaml.safe_load(ours.read_text())
    del config["extenders"]
    config["profiles"] = [{"schedulerName": names.SCHEDULER_NAME}]
    path.write_text(yaml.safe_dump(config))
    return path


class Throughput:
    """Measures on one control plane. installation: gpuslice's programs; the extender runs. manager:
    kube-controller-manager, which CLAIMS needs."""

    def __init__(
        self,
        plane: ControlPlane,
        kube: Kube,
        installation: Installation,
        manager: Process | None = None,
    ) -> None:
        self._plane = plane
        self._kube = kube
        self._configs = {
            OURS: installation.config,
            **dict.fromkeys(
                (STOCK, CLAIMS), stock_config(installation.config, plane.directory / "stock.yaml")
            ),
        }
        self._manager = manager
        self._extender = psutil.Process(installation.extender.pid)
        self._number = 0

    async def measure(self, count: int, kinds: Iterable[str]) -> Runs:
        """Measure a run of each of these kinds, in this order."""
        runs = Runs()
        for kind in kinds:
            await self._run(kind, count, runs)
        return runs

    async def _run(self, kind: str, count: int, runs: Runs) -> None:
        self._number += 1
        namespace = f"run-{self._number}"
        path = f"/api/v1/namespaces/{namespace}/pods"
        await self._kube.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        ours = kind == OURS
        if kind == CLAIMS:
            template = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
            await self._kube.post(template, stage.template())
        self._extender.send_signal(signal.SIGCONT if ours else signal.SIGSTOP)
        kubeconfig, name = self._plane.kubeconfig("scheduler"), f"kube-scheduler-{self._number}"
        scheduler = self._plane.start_kube_scheduler(self._configs[kind], kubeconfig, name)
        try:
            await self._warm_up(namespace, kind)
            await self._rest(scheduler.pid)
            scheduler.send(signal.SIGSTOP)
            pods = [_pod(kind, f"p{number}") for number in range(count)]
            found = await self._kube.get(path, limit=1)
            seen = asyncio.create_task(
                stage.bound_at(self._kube, namespace, count, found["metadata"]["resourceVersion"])
            )
            before = stage.writes(self._plane)
            self._extender.send_signal(signal.SIGSTOP)
            self._signal_manager(signal.SIGSTOP)
            await stage.post_all(self._kube, path, pods)
            spent_s, started_s = self._spent_s(scheduler.pid), time.monotonic()
            if ours:
                self._extender.send_signal(signal.SIGCONT)
            self._signal_manager(signal.SIGCONT)
            scheduler.send(signal.SIGCONT)
            times = await seen
            took_s = times[-1] - started_s
            spent = {name: s - spent_s[name] for name, s in self._spent_s(scheduler.pid).items()}
            runs.spend(kind, spent, took_s, count)
            # kube-scheduler writes the Events a little later than the Bindings.
            await asyncio.sleep(2)
            runs.writes[kind] += stage.writes(self._plane) - before
        finally:
            self._signal_manager(signal.SIGCONT)
            scheduler.send(signal.SIGCONT)
            scheduler.stop()
            self._extender.send_signal(signal.SIGCONT)
        rate = count / took_s
        runs.pods_per_s.setdefault(kind, []).append(rate)
        runs.bound[kind] += count
        say(f"{kind}: {count} pods, {rate:.0f} a second")
        await stage.delete_all(self._kube, path)

    def _signal_manager(self, number: signal.Signals) -> None:
        if self._manager is not None:
            self._manager.send(number)

    async def _warm_up(self, namespace: str, kind: str) -> None:
        """Create a few pods, and wait until kube-scheduler has bound them."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        warm = [_pod(kind, f"first-{number}") for number in range(5)]
        await stage.post_all(self._kube, path, warm)
        deadline = time.monotonic() + _READY_S
        while True:
            found = await self._kube.get(path)
            if all(pod["spec"].get("nodeName") for pod in found["items"]):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"kube-scheduler binds nothing within {_READY_S:.0f} s")
            await asyncio.sleep(0.2)

    async def _rest(self, scheduler_pid: int) -> None:
        """Wait until all programs together use little of one processor."""
        deadline = time.monotonic() + _READY_S
        spent_s = sum(self._spent_s(scheduler_pid).values())
        while time.monotonic() < deadline:
            await asyncio.sleep(_REST_S)
            before_s, spent_s = spent_s, sum(self._spent_s(scheduler_pid).values())
            if spent_s - before_s < _REST_S * _AT_REST:
                return
        raise RuntimeError(f"the programs are not at rest within {_READY_S:.0f} s")

    def _spent_s(self, scheduler_pid: int) -> Mapping[str, float]:
        """Return the processor time of each program."""
        pids = {
            "kube-apiserver": self._plane.apiserver.pid,
            "etcd": self._plane.etcd.pid,
            "kube-scheduler": scheduler_pid,
            "the extender": self._extender.pid,
            "the bench": os.getpid(),
        }
        if self._manager is not None:
            pids["kube-controller-manager"] = self._manager.pid
        return {program: cpu_s(pid) for program, pid in pids.items()}


def _pod(kind: str, name: str) -> stage.Json:
    return stage.claiming_pod(name) if kind == CLAIMS else stage.asking_pod(name, (fleets.ASKED,))
