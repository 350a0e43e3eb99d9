"""Keeps Kueue's objects as KAI's Queues say, and writes the Queues' status and pods' Events.

Only the process that may bind writes. Objects without our label are never changed. Where KAI's own
CRD or no Kueue is installed, only the Queues' condition is written, which says so. A smaller
capacity counts after _SHRINK_S, because Kueue may evict pods for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.client import METADATA_ONLY, Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json, at
from gpuslice.kube.log_lines import Line
from gpuslice.kube.reflector import Reflector
from scheduler.events import Events
from scheduler.metrics import Metrics
from scheduler.queues import kueue, status, tree
from scheduler.queues.store import Store, key_of

_LOG: Final = logging.getLogger(__name__)

_QUEUES: Final = f"/apis/{tree.API_VERSION}/{tree.PLURAL}"
_KUEUE: Final = f"/apis/{kueue.API_VERSION}"
_CRD: Final = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{tree.PLURAL}.{tree.GROUP}"
_FOREIGN: Final = tree.Finding("KAIInstalled", "KAI-Scheduler installed the CRD and owns Queues")
_SIZES: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.CONFIG_GPU_SIZES}"
_STEP_S: Final = 1.0
_SHOW_S: Final = 2.0
"""The interval at which statuses and Events are written."""
_CHECK_S: Final = 30.0
"""The interval at which the CRD's owner is read, and a failed write of the sizes is repeated."""
_SHRINK_S: Final = 10.0
_UNWANTED_S: Final = 60.0
"""The time after which a LocalQueue without pods is removed. The next pod often comes soon."""
_ANSWER_S: Final = 5.0


class Queues:
    """may_write: whether this process may write now. gpu_bytes: returns the memory of each usable
    GPU. clock: monotonic seconds."""

    def __init__(
        self,
        kube: Kube,
        may_write: Callable[[], bool],
        gpu_bytes: Callable[[], Iterable[int]],
        events: Events,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._kube, self._may_write, self._gpu_bytes = kube, may_write, gpu_bytes
        self._events, self._metrics, self._clock = events, metrics, clock
        self._queues, self._namespaces = Store(_whole), Store(_whole)
        self._works = Store[status.Work](lambda raw, _: status.work(raw))
        self._pods = Store(self._read_pod)
        self._objects = {kind: Store(_whole) for kind in kueue.PLURALS}
        stores = {f"{_KUEUE}/{kueue.PLURALS[kind]}": each for kind, each in self._objects.items()}
        on, named = f"{names.LABEL_QUEUES}=true", names.LABEL_KUEUE_QUEUE
        self._own = Reflector(kube, _QUEUES, self._queues)
        self._others = [
            Reflector(kube, f"{_KUEUE}/workloads", self._works),
            Reflector(kube, "/api/v1/pods", self._pods, query={"labelSelector": named}),
            Reflector(
                *(kube, "/api/v1/namespaces", self._namespaces, METADATA_ONLY),
                query={"labelSelector": on},
            ),
            *(Reflector(kube, path, store) for path, store in stores.items()),
        ]
        self._capacity, self._shrinks_at_s = 0, inf
        self._sizes, self._sized_at_s = "", -inf
        self._wanted_at_s: dict[tuple[str, str], float] = {}
        """When a pod last named the LocalQueue, by namespace and name."""
        self._refused: dict[str, tree.Finding] = {}
        """Why an object of the queue cannot be written, by the queue's name."""
        self._said: dict[tuple[str, str], status.PodEvent] = {}
        """The current Events by pod's UID and reason. The text stays, so it is written once."""
        self._logged, self._is_foreign = "", False
        self._checked_at_s = self._shown_at_s = -inf

    def _read_pod(self, raw: Json, before: status.Pod | None) -> status.Pod | None:
        read = status.pod(raw, self._clock())
        if not before or not read or (before.uid, before.is_gated) != (read.uid, read.is_gated):
            return read
        return replace(read, since_s=before.since_s)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self._own, *self._others):
                group.create_task(reflector.run(), name=f"watch {reflector.path}")
            while True:
                await asyncio.sleep(_STEP_S)
                if not self._may_write():
                    self._metrics.clear_queues()
                    continue
                try:
                    await self._step(self._clock())
                except KubeError as error:
                    self._log(str(error))

    async def _step(self, now_s: float) -> None:
        await self._count(now_s)
        if self._own.problem:
            self._log(f"{_QUEUES}: {self._own.problem}")
            return
        problem = await self._problem(now_s)
        self._log(problem.message if problem else "")
        built = tree.build(self._queues.values(), kueue.ROOT)
        shared = kueue.shares(built, self._capacity)
        pods = [pod for pod in self._pods.values() if f"/{pod.namespace}" in self._namespaces]
        if problem is None:
            await self._apply(self._desired(built, shared, pods, now_s))
        if now_s - self._shown_at_s < _SHOW_S:
            return
        self._shown_at_s = now_s
        local = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): str(
                at(each, "spec").get("clusterQueue")
            )
            for each in self._objects["LocalQueue"].values()
        }
        found = status.uses(built, self._works.values(), pods, local, now_s)
        self._measure(shared, found)
        await self._write_statuses(built, shared, found, problem)
        if problem is None:
            said = status.events(built, shared, found, pods, local, self._capacity, now_s)
            keyed = {(each.pod.uid, each.reason): each for each in said}
            self._said = {key: self._said.get(key, each) for key, each in keyed.items()}
            await self._events.about_pods(
                (each.reason, each.pod.namespace, each.pod.name, each.pod.uid, each.text)
                for each in self._said.values()
            )

    async def _count(self, now_s: float) -> None:
        """Count the capacity, and write the sizes of the GPUs for the admission policy."""
        memory = [*self._gpu_bytes()]
        counted = tree.MILLI * len(memory)
        if counted >= self._capacity or now_s >= self._shrinks_at_s:
            self._capacity, self._shrinks_at_s = counted, inf
        elif self._shrinks_at_s == inf:
            self._shrinks_at_s = now_s + _SHRINK_S
        sizes = ",".join(map(str, sorted({each >> 20 for each in memory})))
        if sizes in ("", self._sizes) or now_s - self._sized_at_s < _CHECK_S:
            return
        data = {"data": {names.CONFIG_KEY_MIB: sizes}}
        try:
            await self._kube.patch(_SIZES, data, timeout_s=_ANSWER_S)
            self._sizes = sizes
        except KubeError as error:
            self._sized_at_s = now_s
            _LOG.warning(Line("sizes of GPUs not written", error=error))

    async def _problem(self, now_s: float) -> tree.Finding | None:
        """Return why no queue is served."""
        if now_s - self._checked_at_s >= _CHECK_S:
            labels = at(at(await self._kube.get(_CRD), "metadata"), "labels")
            self._is_foreign = labels.get(names.LABEL_PART_OF) != names.PART_OF
            self._checked_at_s = now_s
        if self._is_foreign:
            return _FOREIGN
        broken = [f"{each.path}: {each.problem}" for each in self._others if each.problem]
        return tree.Finding("KueueUnavailable", "; ".join(broken)) if broken else None

    # --- Kueue's objects

    def _desired(
        self,
        built: tree.Tree,
        shared: Mapping[str, kueue.Share],
        pods: Iterable[status.Pod],
        now_s: float,
    ) -> list[dict[str, Any]]:
        wanted = self._wanted_at_s
        wanted |= {(each.namespace, each.queue): now_s for each in pods}
        wanted |= {(each.namespace, each.queue): now_s for each in self._works.values()}
        for key, at_s in [*wanted.items()]:
            if now_s - at_s >= _UNWANTED_S or f"/{key[0]}" not in self._namespaces:
                del wanted[key]
        return kueue.objects(built, shared, self._capacity, wanted) if shared else []

    async def _apply(self, desired: Iterable[Mapping[str, Any]]) -> None:
        self._refused = {}
        unwanted = {(kind, key) for kind, store in self._objects.items() for key in store}
        for wanted in desired:
            kind, key = wanted["kind"], key_of(wanted)
            unwanted.discard((kind, key))
            try:
                await self._write(kind, key, wanted)
            except KubeError as error:
                text = f"{kind}: {error}"
                self._refused[wanted["metadata"]["name"]] = tree.Finding("Refused", text)
                self._log(text)
        for kind, key in unwanted:
            there = self._objects[kind].get(key)
            if there and _is_ours(there) and self._may_change(there):
                uid = {"preconditions": {"uid": there["metadata"]["uid"]}}
                await self._kube.delete(_path(kind, key), uid, timeout_s=_ANSWER_S)

    def _may_change(self, there: Json) -> bool:
        return "deletionTimestamp" not in there["metadata"] and self._may_write()

    async def _write(self, kind: str, key: str, wanted: Json) -> None:
        there = self._objects[kind].get(key)
        if there is None:
            if self._may_write():
                path = _path(kind, key).rpartition("/")[0]
                await self._kube.post(path, wanted, timeout_s=_ANSWER_S)
        elif not _is_ours(there):
            # A user's LocalQueue is a choice. Another object takes the queue's place.
            if kind != "LocalQueue":
                text = f"a {kind} of this name exists that gpuslice did not create"
                self._refused[wanted["metadata"]["name"]] = tree.Finding("NameTaken", text)
        elif self._may_change(there) and not kueue.covers(there.get("spec"), wanted["spec"]):
            patch = {"spec": wanted["spec"]}
            await self._kube.patch(_path(kind, key), patch, timeout_s=_ANSWER_S)

    # --- what is shown

    async def _write_statuses(
        self,
        built: tree.Tree,
        shared: Mapping[str, kueue.Share],
        found: Mapping[str, status.Use],
        problem: tree.Finding | None,
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        for raw in [*self._queues.values()]:
            name = raw["metadata"]["name"]
            fault = problem or self._refused.get(name) or built.faults.get(name)
            stated = status.condition(built, name, shared, found, fault)
            use = None if problem else found.get(name, status.Use())
            after = status.status(raw, built, use, stated, now)
            if after is not None and self._may_write():
                path = f"{_QUEUES}/{name}/status"
                await self._kube.patch(path, {"status": after}, timeout_s=_ANSWER_S)

    def _measure(self, shared: Mapping[str, kueue.Share], found: Mapping[str, status.Use]) -> None:
        self._metrics.clear_queues()
        for name, use in found.items():
            gpus, pods = self._metrics.queue_gpus, self._metrics.queue_pods
            gpus.labels(name, "quota").set(shared[name].guaranteed / tree.MILLI)
            gpus.labels(name, "allocated").set(use.allocated / tree.MILLI)
            gpus.labels(name, "requested").set(use.requested / tree.MILLI)
            pods.labels(name, "waiting").set(use.waiting)
            pods.labels(name, "unplaceable").set(use.unplaceable)

    def _log(self, problem: str) -> None:
        if problem and problem != self._logged:
            _LOG.warning(Line("queues are not served", problem=problem))
        self._logged = problem


def _whole(raw: Json, _: Json | None) -> Json:
    return raw


def _is_ours(raw: Json) -> bool:
    return kueue.LABELS.items() <= at(at(raw, "metadata"), "labels").items()


def _path(kind: str, key: str) -> str:
    namespace, _, name = key.partition("/")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{_KUEUE}{within}/{kueue.PLURALS[kind]}/{name}"
