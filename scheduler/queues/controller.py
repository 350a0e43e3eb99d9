"""Keeps Kueue's objects as KAI's Queues say, and writes the Queues' status and pods' Events.

Only the process that may bind writes. Objects without our label are never changed. Where KAI's own
CRD or no Kueue is installed, only the Queues' condition is written, which says so. A smaller
capacity counts after _SHRINK_S, because Kueue may evict pods for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
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
from scheduler.queues import figures, kueue, status, tree
from scheduler.queues.figures import Pod
from scheduler.queues.store import Store, T, key_of
from scheduler.queues.tree import QUEUES, Finding

_LOG: Final = logging.getLogger(__name__)

_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD: Final = f"{tree.PLURAL}.{tree.GROUP}"
_SIZES: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.CONFIG_GPU_SIZES}"
_STEP_S: Final = 1.0
_SHOW_S: Final = 5.0
"""The interval at which statuses and Events are written."""
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
        self._watches: list[Reflector] = []

        def watch(
            path: str, read: Callable[[Json], T | None], only: str = "", **of: str
        ) -> Store[T]:
            store = Store(read)
            self._watches.append(Reflector(kube, path, store, only, of))
            return store

        on, named = f"{names.LABEL_QUEUES}=true", names.LABEL_KUEUE_QUEUE
        self._queues = watch(QUEUES, _whole)
        self._crds = watch(_CRDS, _whole, METADATA_ONLY, fieldSelector=f"metadata.name={_CRD}")
        self._works = watch(f"{kueue.API}/workloads", figures.work)
        self._pods = watch("/api/v1/pods", figures.pod, labelSelector=named)
        self._namespaces = watch("/api/v1/namespaces", _living, METADATA_ONLY, labelSelector=on)
        self._objects = {
            kind: watch(f"{kueue.API}/{plural}", _whole) for kind, plural in kueue.PLURALS.items()
        }
        self._capacity, self._shrinks_at_s, self._shown_at_s = 0, inf, -inf
        self._sizes, self._logged, self._kept = "", "", dict[str, str]()
        self._wanted_at_s: dict[tuple[str, str], float] = {}
        """When a pod last named the LocalQueue, by namespace and name."""
        self._since_s: dict[tuple[str, bool], float] = {}
        """Since when a pod is at Kueue's gate, or without it, by UID and whether it is gated."""
        self._written: dict[str, tuple[Json, object]] = {}
        """The spec that was last written to the path, and the version of the object with it."""
        self._refused: dict[tuple[str, str], Finding] = {}
        """Why an object cannot be written, by kind and name."""
        self._said: dict[tuple[str, str], status.PodEvent] = {}
        """The current Events by reason and pod's UID. The text stays, so it is written once."""

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._watches:
                group.create_task(reflector.run(), name=f"watch {reflector.path}")
            while True:
                await asyncio.sleep(_STEP_S)
                if not self._may_write():
                    self._metrics.clear_queues()
                    continue
                try:
                    problem = await self._step(self._clock())
                except KubeError as error:
                    problem = str(error)
                if problem and problem != self._logged:
                    _LOG.warning(Line("queues are not served", problem=problem))
                self._logged = problem

    async def _step(self, now_s: float) -> str:
        """Return what is in the way."""
        unwritten = await self._count(now_s)
        if unread := self._watches[0].problem:
            return f"{QUEUES}: {unread}"
        problem, raws = self._problem(), [*self._queues.values()]
        queues = tree.build(raws)
        kueue.divide(queues, self._capacity)
        pods = [pod for pod in self._pods.values() if f"/{pod.namespace}" in self._namespaces]
        if problem is None:
            ours = filter(_is_ours, self._objects["ClusterQueue"].values())
            busy = {each.holder for each in self._works.values()}
            self._kept = kueue.held(queues, ours, busy)
            wanted = kueue.objects(queues, self._wanted(pods, now_s), self._kept)
            await self._apply(wanted if queues[""].below or self._kept else [])
        if now_s - self._shown_at_s >= _SHOW_S:
            self._shown_at_s = now_s
            await self._show(queues, raws, pods, problem, now_s)
        found = [problem] if problem else self._refused.values()
        return "; ".join([*(each.message for each in found), unwritten]).strip("; ")

    async def _count(self, now_s: float) -> str:
        """Count the capacity, and write the sizes of the GPUs for the admission policy."""
        memory = [*self._gpu_bytes()]
        counted = tree.MILLI * len(memory)
        if counted >= self._capacity or now_s >= self._shrinks_at_s:
            self._capacity, self._shrinks_at_s = counted, inf
        elif self._shrinks_at_s == inf:
            self._shrinks_at_s = now_s + _SHRINK_S
        sizes = ",".join(map(str, sorted({each >> 20 for each in memory})))
        if sizes not in ("", self._sizes):
            try:
                await self._send(self._kube.patch, _SIZES, {"data": {names.CONFIG_KEY_MIB: sizes}})
                self._sizes = sizes
            except KubeError as error:
                return f"{_SIZES}: {error}"
        return ""

    def _problem(self) -> Finding | None:
        """Return why no queue is served."""
        if broken := [f"{each.path}: {each.problem}" for each in self._watches if each.problem]:
            return Finding("KueueUnavailable", "; ".join(broken))
        ours = (at(at(raw, "metadata"), "labels") for raw in self._crds.values())
        is_ours = all(labels.get(names.LABEL_PART_OF) == names.PART_OF for labels in ours)
        return None if is_ours else status.FOREIGN

    def _wanted(self, pods: Iterable[Pod], now_s: float) -> Iterable[tuple[str, str]]:
        """Return the namespaces and names of LocalQueues. One stays while Workloads wait in it,
        though its namespace's label was removed."""
        works = {(each.namespace, each.queue) for each in self._works.values()}
        seen = {(each.namespace, each.queue): now_s for each in pods}
        seen |= dict.fromkeys(works, now_s)
        there = self._objects["LocalQueue"]
        self._wanted_at_s = {
            key: each
            for key, each in (self._wanted_at_s | seen).items()
            if now_s - each < _UNWANTED_S
            if f"/{key[0]}" in self._namespaces or (key in works and "/".join(key) in there)
        }
        return self._wanted_at_s

    # --- Kueue's objects

    async def _apply(self, desired: Collection[Json]) -> None:
        self._refused = {}
        unwanted = {(kind, key) for kind, store in self._objects.items() for key in store}
        for wanted in desired:
            kind, key = wanted["kind"], key_of(wanted)
            unwanted.discard((kind, key))
            try:
                await self._write(kind, key, wanted)
            except KubeError as error:
                self._refuse(wanted, "Refused", f": {error}")
        cohorts = {each["metadata"]["name"] for each in desired if each["kind"] == "Cohort"}
        for theirs in self._objects["ClusterQueue"].values():
            cohort = theirs["spec"].get("cohortName")
            if cohort in cohorts - {tree.ROOT} and not _is_ours(theirs):
                text = f" has a ClusterQueue that gpuslice did not create: {key_of(theirs)[1:]}"
                about = {"kind": "Cohort", "metadata": {"name": cohort}}
                self._refuse(about, status.TAKEN, text)
        for kind, key in unwanted:
            there = self._objects[kind].get(key)
            if there and _may_change(there):
                uid = {"preconditions": {"uid": there["metadata"]["uid"]}}
                await self._send(self._kube.delete, _path(kind, key), uid)

    async def _write(self, kind: str, key: str, wanted: Json) -> None:
        there, path, spec = self._objects[kind].get(key), _path(kind, key), wanted["spec"]
        if there is None:
            after = await self._send(self._kube.post, path.rpartition("/")[0], wanted)
        elif _may_change(there) and self._written.get(path) != (spec, _version(there)):
            after = await self._send(self._kube.patch, path, {"spec": spec})
        else:
            # A user's LocalQueue or flavor is a choice. Another object takes the queue's place.
            if not _is_ours(there):
                if kind not in ("LocalQueue", "ResourceFlavor"):
                    text = " of this name exists that gpuslice did not create"
                    self._refuse(wanted, status.TAKEN, text)
            elif not _may_change(there) and wanted["metadata"]["name"] not in self._kept:
                text = " is being deleted, which ends with its last pod; then it is made again"
                self._refuse(wanted, "Terminating", text)
            return
        self._written[path] = spec, _version(after)

    def _refuse(self, wanted: Json, reason: str, text: str) -> None:
        kind, name = wanted["kind"], key_of(wanted).removeprefix("/")
        self._refused[kind, name] = Finding(reason, f"{kind} {name}{text}")

    async def _send(self, send: Callable[..., Awaitable[Any]], path: str, body: Json) -> Any:
        if not self._may_write():
            raise KubeError(0, "NotLeader", "another process writes")
        return await send(path, body, timeout_s=_ANSWER_S)

    # --- what is shown

    async def _show(
        self,
        queues: tree.Queues,
        raws: Iterable[Json],
        pods: Iterable[Pod],
        problem: Finding | None,
        now_s: float,
    ) -> None:
        keys = [(each.uid, each.is_gated) for each in pods]
        self._since_s = {key: self._since_s.get(key, now_s) for key in keys}
        ages_s = {uid: now_s - since_s for (uid, _), since_s in self._since_s.items()}
        local = figures.locals_of(self._objects["LocalQueue"].values())
        figures.count(queues, self._works.values(), pods, local, ages_s, self._kept)
        self._measure(queues)
        for (kind, name), fault in self._refused.items():
            if kind == "Cohort" and name == tree.ROOT:
                for top in queues[""].below:
                    top.fault = fault
            elif name in queues and kind != "ResourceFlavor":
                queues[name].fault = fault
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        for raw in raws:
            name = raw["metadata"]["name"]
            queues[name].fault = problem or queues[name].fault
            after = status.status(raw, queues[name], problem, self._capacity, now)
            if after is not None:
                await self._send(self._kube.patch, f"{QUEUES}/{name}/status", {"status": after})
        if problem:  # which may be but the start of this process
            pods = [e for e in pods if e.is_gated and ages_s[e.uid] >= status.WAITED_S]
        whys = {each.owner: each.why for each in self._works.values()} | {
            each.uid: refusal.message
            for each in pods
            if (refusal := self._refused.get(("LocalQueue", f"{each.namespace}/{each.queue}")))
        }
        said = {(e[0], e[1][-1]): e for e in status.events(queues, pods, local, ages_s, whys)}
        self._said = {key: self._said.get(key, each) for key, each in said.items()}
        await self._events.write(self._said.values())

    def _measure(self, queues: tree.Queues) -> None:
        self._metrics.clear_queues()
        gpus, pods = self._metrics.queue_gpus, self._metrics.queue_pods
        for queue in queues[""].tree():
            gpus.labels(queue.name, "quota").set(queue.guaranteed / tree.MILLI)
            gpus.labels(queue.name, "allocated").set(queue.used / tree.MILLI)
            gpus.labels(queue.name, "requested").set(queue.wanted / tree.MILLI)
            pods.labels(queue.name, "waiting").set(queue.waiting)
            pods.labels(queue.name, "unplaceable").set(queue.unplaceable)


def _whole(raw: Json) -> Json:
    return raw


def _living(raw: Json) -> Json | None:
    return None if "deletionTimestamp" in raw["metadata"] else raw


def _is_ours(raw: Json) -> bool:
    return kueue.LABELS.items() <= at(at(raw, "metadata"), "labels").items()


def _version(raw: Json) -> object:
    return [at(raw, "metadata").get(key) for key in ("uid", "generation")]


def _may_change(there: Json) -> bool:
    return _is_ours(there) and "deletionTimestamp" not in there["metadata"]


def _path(kind: str, key: str) -> str:
    namespace, _, name = key.partition("/")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{kueue.API}{within}/{kueue.PLURALS[kind]}/{name}"
