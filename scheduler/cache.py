"""Updates `scheduler.decisions.state` from watches of pods, nodes, devices and Leases.

State gets facts, not JSON. For each pod this module stores only a hash of the fields that it reads,
to detect changes. The requests of unbound pods are not stored, because kube-scheduler sends them
with each verb. See docs/adr/0023.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.client import METADATA_ONLY, Kube
from gpuslice.kube.fields import Json, at
from gpuslice.kube.reflector import Reflector
from scheduler.core.reservations import Nomination
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import State
from scheduler.decisions.unserved import Unserved
from scheduler.kubernetes import requests, translate
from scheduler.kubernetes.facts import LeaseFacts, SchedulerLease
from scheduler.kubernetes.leases import agent_lease, scheduler_lease

PODS: Final = "/api/v1/pods"
NODES: Final = "/api/v1/nodes"
DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
BUDGETS: Final = "/apis/policy/v1/poddisruptionbudgets"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"

_UNFINISHED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""With this selector the API server reports a finished pod as deleted."""
_TICK_S: Final = 1.0
_KUBE_SCHEDULER: Final = f"{names.NAMESPACE}/{names.LEASE_KUBE_SCHEDULER}"
"""The key of kube-scheduler's Lease. The other keys are node names, which contain no slash."""


class Cache:
    """The watches. The creator must run `run`. clock: State's clock. wall: seconds since the epoch.
    observe_scheduler: see Leadership.observe."""

    def __init__(
        self,
        kube: Kube,
        state: State,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        wall: Callable[[], float] = time.time,
        retries: Unschedulable | None = None,
        sampling: Sampling | None = None,
        unserved: Unserved | None = None,
        observe_scheduler: Callable[[SchedulerLease | None], None] = lambda lease: None,
    ) -> None:
        self._kube = kube
        self._state = state
        self._clock = clock

        def observe_lease(facts: LeaseFacts) -> None:
            age_s = 0.0 if facts.renewed_s is None else wall() - facts.renewed_s
            state.observe_lease(facts, clock(), age_s)

        nodes = _Objects(translate.node, state.observe_node, state.remove_node)
        devices = _Objects(translate.device, state.observe_device, state.remove_device)
        budgets = _Objects(translate.budget, state.budgets.observe, state.budgets.remove)
        leases = _Leases(observe_lease, state.remove_lease, observe_scheduler)
        pods = _Pods(
            state,
            Unschedulable(state) if retries is None else retries,
            Sampling(state) if sampling is None else sampling,
            Unserved((), clock) if unserved is None else unserved,
        )
        shared: dict[str, Any] = {"clock": clock, "jitter": jitter}
        self._reflectors: Final[Mapping[str, Reflector]] = {
            "nodes": Reflector(kube, NODES, nodes, only=METADATA_ONLY, **shared),
            "devices": Reflector(kube, DEVICES, devices, **shared),
            "poddisruptionbudgets": Reflector(kube, BUDGETS, budgets, **shared),
            "leases": Reflector(kube, LEASES, leases, **shared),
            "pods": Reflector(kube, PODS, pods, query=_UNFINISHED, **shared),
        }

    async def run(self) -> None:
        """Run until cancelled. Errors in objects appear in State's problems. An exception of this
        method is a defect of this program, after which State must not be used."""
        async with asyncio.TaskGroup() as group:
            for name, reflector in self._reflectors.items():
                group.create_task(reflector.run(), name=f"watch {name}")
            group.create_task(self._tick(), name="tick")

    @property
    def synced(self) -> bool:
        """Whether every kind has been listed once. Before that, no decision may be made."""
        return all(reflector.synced for reflector in self._reflectors.values())

    async def wait_synced(self) -> None:
        await asyncio.gather(*(each.wait_synced() for each in self._reflectors.values()))

    async def relist(self) -> None:
        """List all kinds again, and return once State has received these lists."""
        await asyncio.gather(*(each.relist() for each in self._reflectors.values()))

    def ages(self) -> Mapping[str, float]:
        """Return by kind the seconds since the API server last sent anything; inf: never. Normally
        they are at most about a minute, the interval at which the server sends bookmarks."""
        now_s = self._clock()
        return {
            name: float("inf") if each.received_s is None else now_s - each.received_s
            for name, each in self._reflectors.items()
        }

    def lists(self) -> Mapping[str, int]:
        """Return the number of full lists, by kind."""
        return {name: each.lists for name, each in self._reflectors.items()}

    def problems(self) -> Sequence[str]:
        """Return the errors of watches, and the error if the credentials cannot be read again."""
        broken = [
            f"{name}: {each.problem}" for name, each in self._reflectors.items() if each.problem
        ]
        return [*broken, self._kube.problem] if self._kube.problem else broken

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._state.tick(self._clock(), bool(self._reflectors["leases"].problem))


class _Objects:
    """Passes objects of one kind other than pods to State. read: returns the facts of an object,
    or None if it is to be ignored. observe, remove: State's methods."""

    def __init__(
        self,
        read: Callable[[Json], Any],
        observe: Callable[[Any], None],
        remove: Callable[[str], None],
    ) -> None:
        self._read = read
        self._observe = observe
        self._remove = remove
        self._there: set[str] = set()

    def observed(self, raw: Json) -> str:
        facts = self._read(raw)
        if facts is None:
            return ""
        name: str = facts.name
        self._there.add(name)
        self._observe(facts)
        return name

    def deleted(self, raw: Json) -> None:
        facts = self._read(raw)
        if facts is not None:
            self._forget({facts.name})

    def listed(self, keys: set[str]) -> None:
        self._forget(self._there - keys)

    def _forget(self, names: set[str]) -> None:
        self._there -= names
        for name in names:
            self._remove(name)


class _Leases(_Objects):
    """Passes on the Leases of agents and the Lease of kube-scheduler."""

    def __init__(
        self,
        observe: Callable[[LeaseFacts], None],
        remove: Callable[[str], None],
        observe_scheduler: Callable[[SchedulerLease | None], None],
    ) -> None:
        super().__init__(agent_lease, observe, remove)
        self._observe_scheduler = observe_scheduler

    def observed(self, raw: Json) -> str:
        lease = scheduler_lease(raw)
        if lease is None:
            return super().observed(raw)
        self._observe_scheduler(lease)
        return _KUBE_SCHEDULER

    def deleted(self, raw: Json) -> None:
        super().deleted(raw)
        if scheduler_lease(raw) is not None:
            self._observe_scheduler(None)

    def listed(self, keys: set[str]) -> None:
        super().listed(keys)
        if _KUBE_SCHEDULER not in keys:
            self._observe_scheduler(None)


class _Pods:
    """Passes pods to State. marks: by UID, the `translate.mark` of the pod when last observed."""

    def __init__(
        self, state: State, retries: Unschedulable, sampling: Sampling, unserved: Unserved
    ) -> None:
        self._state = state
        self._unserved = unserved
        self._retries = retries
        self._sampling = sampling
        self._marks: dict[str, int] = {}

    def observed(self, raw: Json) -> str:
        uid, mark = translate.uid(raw), translate.mark(raw)
        before, is_bound = self._marks.get(uid), bool(at(raw, "spec").get("nodeName"))
        if not is_bound:
            self._unserved.observe(uid, raw)
        if before == mark:
            return uid
        self._marks[uid] = mark
        if is_bound:
            self._unserved.observe(uid, raw)
            self._leave_queues(uid)
            self._state.observe_pod(translate.pod(raw))
        elif translate.is_deleting(raw):
            self._state.reservations.forget(uid)
        else:
            self._observe_unbound(raw, is_new=before is None)
        return uid

    def _observe_unbound(self, raw: Json, is_new: bool) -> None:
        # If another process refused the pod, the pod is not queued here yet.
        is_refused = is_new and requests.was_refused(raw)
        if is_new and not is_refused and not at(raw, "status").get("nominatedNodeName"):
            return
        pod, nomination = requests.pending(raw, self._state.dialects), None
        if is_refused:
            self._retries.restore(pod)
        if pod.nominated and pod.request and self._retries.serves(pod):
            nomination = Nomination(pod.nominated, pod.request, pod.priority)
        self._state.reservations.nominate(pod.uid, nomination)

    def deleted(self, raw: Json) -> None:
        self._forget(translate.uid(raw))

    def listed(self, keys: set[str]) -> None:
        """Remove known pods that the list lacks, even assumed ones: the list is newer than their
        last events. State keeps assumed pods that were never observed."""
        for uid in self._marks.keys() - keys:
            self._forget(uid)
        self._state.keep_pods(keys)

    def _forget(self, uid: str) -> None:
        self._marks.pop(uid, None)
        self._unserved.remove(uid)
        self._leave_queues(uid)
        self._state.reservations.forget(uid)
        self._state.remove_pod(uid)

    def _leave_queues(self, uid: str) -> None:
        self._retries.remove(uid)
        self._sampling.remove(uid)
