"""Random orders of binds, outcomes and watch events: no GPU is overcommitted, no reservation leaks,
and no pod has two placements.

The simulated store is slow, loses answers, answers conflict for applied Bindings, and applies
Bindings long after their timeout. Time is virtual.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from gpuslice.contract import grants
from gpuslice.contract import names as words
from gpuslice.kube.errors import NO_ANSWER, UNREACHABLE, KubeError
from scheduler.binder import Binder
from scheduler.cache import _Pods
from scheduler.decisions.requeue import Unschedulable
from scheduler.decisions.sampling import Sampling
from scheduler.decisions.state import State
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
from tests.scheduler import calls, objects, virtual_time
from tests.scheduler.lease_guards import ManualLeaseGuard

NODES, GPUS = 2, 1
PODS = 12
GPU_BYTES = 24 * objects.Gi
LONGEST_S = 120.0
"""The latest time at which a timed-out Binding may be applied."""


class Store:
    """Pods, and a delayed watch of them in order. Requests take random time."""

    def __init__(self, chance: random.Random, state: State) -> None:
        self.chance = chance
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.late: set[asyncio.Task[None]] = set()
        self.calm = False
        self.bound_to: dict[str, str] = {}
        self.views: dict[str, list[dict[str, Any]]] = {}
        """By name, earlier versions of each pod."""
        self._watch = _Pods(state, Unschedulable(state), Sampling(state))
        self._version = 0

    # --- requests of the scheduler

    async def get(self, path: str, *, timeout_s: float = 0) -> Any:
        await self._take(timeout_s)
        if not self.calm and self.chance.random() < 0.3:
            raise KubeError(*self.chance.choice(((0, NO_ANSWER, ""), (500, "Internal", ""))))
        pod = self.pods.get(path.rsplit("/", 1)[1])
        if pod is None:
            raise KubeError(404, "NotFound", "")
        found = _copy(pod)
        await self._take(timeout_s)
        return found

    async def post(self, path: str, body: Any, *, timeout_s: float = 0, **query: object) -> Any:
        await self._take(timeout_s / 2)
        fate = 0.0 if self.calm else self.chance.random()
        if fate < 0.25:
            self._assign(body)
        elif fate < 0.4:
            refused = ((0, UNREACHABLE, ""), (429, "TooManyRequests", ""), (403, "Forbidden", ""))
            raise KubeError(*self.chance.choice(refused))
        else:
            after_s = self.chance.choice((0.0, 5.0, 30.0, LONGEST_S)) * self.chance.random()
            task = asyncio.create_task(self._do_later(body, after_s))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
            await self._take(timeout_s)
            lost = ((0, NO_ANSWER, ""), (500, "Internal", ""), (409, "Conflict", ""))
            raise KubeError(*self.chance.choice(lost))
        await self._take(timeout_s / 2)
        return {}

    async def _take(self, most_s: float) -> None:
        await asyncio.sleep(most_s * self.chance.random() ** 3)

    async def _do_later(self, body: Any, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.chance.random() < 0.7:
            try:
                self._assign(body)
            except KubeError:
                return

    def _assign(self, body: Any) -> None:
        metadata = body["metadata"]
        pod = self.pods.get(metadata["name"])
        if pod is None:
            raise KubeError(404, "NotFound", "")
        there = pod["metadata"]
        same = all(metadata[key] == there[key] for key in ("uid", "resourceVersion"))
        if not same or pod["spec"].get("nodeName"):
            raise KubeError(409, "Conflict", "")
        pod["spec"]["nodeName"] = body["target"]["name"]
        there["annotations"] = metadata["annotations"]
        assert there["uid"] not in self.bound_to
        self.bound_to[there["uid"]] = body["target"]["name"]
        self.change(pod)

    # --- actions of others

    def create(self, uid: str, raw: dict[str, Any]) -> None:
        raw["metadata"]["name"] = uid
        self.pods[uid] = raw
        self.change(raw)

    def change(self, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.views.setdefault(pod["metadata"]["name"], []).append(_copy(pod))
        self.events.append(("MODIFIED", _copy(pod)))

    def delete(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        self.events.append(("DELETED", pod))

    def deliver(self, most: int) -> None:
        """Delivers the watch's next events."""
        for _ in range(min(most, len(self.events))):
            kind, pod = self.events.pop(0)
            if kind == "DELETED":
                self._watch.deleted(pod)
            else:
                self._watch.observed(pod)

    def over(self) -> list[str]:
        """GPUs whose allocations, by the pods' annotations, exceed their capacity."""
        held: dict[str, int] = {}
        for pod in self.pods.values():
            text = pod["metadata"]["annotations"].get(words.ANNOTATION_GRANTS)
            if text and pod["spec"].get("nodeName"):
                for shares in grants.decode(text).values():
                    for share in shares:
                        held[share.id] = held.get(share.id, 0) + share.memory_bytes
        return [gpu for gpu, size in held.items() if size > GPU_BYTES]


def _copy(pod: dict[str, Any]) -> dict[str, Any]:
    metadata = {**pod["metadata"], "annotations": dict(pod["metadata"]["annotations"])}
    return {**pod, "metadata": metadata, "spec": dict(pod["spec"])}


async def _place(store: Store, verbs: Verbs, binder: Binder, uid: str) -> None:
    """One scheduling attempt by kube-scheduler, whose view of the pod may be old. Sometimes it
    writes a failure into the pod."""
    chance, views = store.chance, store.views[uid]
    raw = views[-1] if chance.random() < 0.7 else chance.choice(views[-3:])
    if raw["spec"].get("nodeName"):
        return
    among = chance.sample(calls.names(NODES), chance.randint(1, NODES))
    found = calls.loads(verbs.filter(calls.arguments(raw, among))).get("NodeNames") or []
    if not found:
        return
    node = chance.choice(found if chance.random() < 0.8 else among)
    if chance.random() < 0.8:
        ranked = json.loads(verbs.prioritize(calls.arguments(raw, found)))
        if chance.random() < 0.7:
            node = max(ranked, key=lambda each: each["Score"])["Host"]
    await asyncio.sleep(chance.random())
    wanted = BindingArguments("default", uid, uid, node)
    timeout_s = chance.choice((0.5, 5.0, 30.0))
    try:
        async with asyncio.timeout(timeout_s):
            said = (await binder.bind(wanted)).error
    except TimeoutError:
        said = "no answer"
    pod = store.pods.get(uid)
    if said and pod and not pod["spec"].get("nodeName") and chance.random() < 0.3:
        store.change(pod)
    if not said:
        assert store.bound_to[uid] == node


@pytest.fixture(autouse=True)
def loop_factory() -> type[virtual_time.Loop]:
    return virtual_time.Loop


@pytest.mark.parametrize("seed", range(150))
async def test_no_gpu_is_over_nothing_leaks_and_no_pod_has_two_places(seed: int) -> None:
    chance = random.Random(seed)
    state = calls.state(NODES, GPUS)
    store, verbs = Store(chance, state), Verbs(state)
    guard = ManualLeaseGuard()
    binder = Binder(state, store, guard, verbs, virtual_time.now)
    tries: set[asyncio.Task[None]] = set()
    for number in range(PODS):
        share = chance.choice((100, 50, 60, 30))
        raw = calls.pod(f"u-{number}", objects.container("main", gpu=share))
        store.create(f"u-{number}", raw)
    for _ in range(120):
        uid = f"u-{chance.randrange(PODS)}"
        step = chance.random()
        if step < 0.6:
            tries.add(asyncio.create_task(_place(store, verbs, binder, uid)))
        elif step < 0.68 and uid in store.pods:
            store.delete(uid)
        elif step < 0.7 and uid in store.pods:
            store.change(store.pods[uid])
        elif step < 0.85:
            tries.add(asyncio.create_task(binder.check_overdue()))
        elif step < 0.9:
            guard.is_open = not guard.is_open
        elif step < 0.95:
            state.tick(virtual_time.now())
        store.deliver(chance.randrange(4))
        assert (state.fleet.used_bytes <= state.fleet.total_bytes).all()
        await asyncio.sleep(chance.choice((0.0, 0.3, 3.0, 40.0)) * chance.random())
        assert store.over() == []
    store.calm = guard.is_open = True
    await asyncio.gather(*tries)
    await asyncio.sleep(LONGEST_S)
    assert store.over() == []
    store.deliver(10**6)
    await _settle(store, state, binder)


async def _settle(store: Store, state: State, binder: Binder) -> None:
    """Ends the disturbances: every pod is changed once more, as by kube-scheduler's retries, and
    `check_overdue` runs. Then the held amounts are exactly those of the bound pods."""
    for pod in store.pods.values():
        store.change(pod)
    for _ in range(3):
        await asyncio.sleep(60)
        await binder.check_overdue()
        store.deliver(10**6)
        state.tick(virtual_time.now())
    fresh = calls.state(NODES, GPUS)
    for pod in store.pods.values():
        fresh.observe_pod(translate.pod(pod))
    assert not binder._jobs
    assert state.overdue(1e9) == []
    assert not len(state.reservations)
    assert not state.fleet.reserved_bytes.any() and not state.fleet.reserved_core.any()
    for name in calls.names(NODES):
        row, other = state.fleet.row_of(name), fresh.fleet.row_of(name)
        assert state.fleet.used_bytes[row].tolist() == fresh.fleet.used_bytes[other].tolist()
        assert state.fleet.used_core[row].tolist() == fresh.fleet.used_core[other].tolist()
