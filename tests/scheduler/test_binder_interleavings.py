"""Random orders of binds, outcomes and watch events. No GPU is overcommitted, no reservation leaks,
and no pod is placed twice.

The simulated API server is slow, loses answers, and may answer 409 although it applied the Binding.
It may also apply a Binding long after the timeout. Time is virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable
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
from scheduler.decisions.unserved import Unserved
from scheduler.decisions.verbs import Verbs
from scheduler.kubernetes import translate
from scheduler.kubernetes.arguments import BindingArguments
from tests import virtual_time
from tests.scheduler import calls, objects
from tests.scheduler.lease_guards import ManualLeaseGuard
from tests.scheduler.pod_server import bind
from tests.virtual_time import loop_factory as loop_factory

Pod = dict[str, Any]

NODES, GPUS = 2, 1
PODS = 12
GPU_BYTES = 24 * objects.Gi
LONGEST_S = 120.0
"""The latest time, in seconds, at which a Binding that timed out may be applied."""


class Store:
    """An API server. Requests take a random time. The watch reports changes late, but in order."""

    def __init__(self, chance: random.Random, state: State) -> None:
        self.chance = chance
        self.pods: dict[str, Pod] = {}
        self.events: list[tuple[Callable[[Pod], object], Pod]] = []
        self.late: set[asyncio.Task[None]] = set()
        self.calm = False
        self.bound_to: dict[str, str] = {}
        self.views: dict[str, list[Pod]] = {}
        """The earlier versions of each pod, by name."""
        self._watch = _Pods(state, Unschedulable(state), Sampling(state), Unserved((), float))
        self._version = 0

    async def get(self, path: str, *, timeout_s: float = 0) -> Any:
        await self._take(timeout_s)
        if not self.calm and self.chance.random() < 0.3:
            raise self._one_of((0, NO_ANSWER), (500, "Internal"))
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
            raise self._one_of((0, UNREACHABLE), (429, "TooManyRequests"), (403, "Forbidden"))
        else:
            after_s = self.chance.choice((0.0, 5.0, 30.0, LONGEST_S)) * self.chance.random()
            task = asyncio.create_task(self._do_later(body, after_s))
            self.late.add(task)
            task.add_done_callback(self.late.discard)
            await self._take(timeout_s)
            raise self._one_of((0, NO_ANSWER), (500, "Internal"), (409, "Conflict"))
        await self._take(timeout_s / 2)
        return {}

    async def _take(self, most_s: float) -> None:
        await asyncio.sleep(most_s * self.chance.random() ** 3)

    def _one_of(self, *errors: tuple[int, str]) -> KubeError:
        return KubeError(*self.chance.choice(errors), "")

    async def _do_later(self, body: Any, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.chance.random() < 0.7:
            with contextlib.suppress(KubeError):
                self._assign(body)

    def _assign(self, body: Any) -> None:
        pod, problem = self.pods.get(body["metadata"]["name"]), bind(self.pods, body)
        if problem or pod is None:
            raise KubeError(409 if pod else 404, "Conflict" if pod else "NotFound", problem)
        uid = pod["metadata"]["uid"]
        assert uid not in self.bound_to
        self.bound_to[uid] = body["target"]["name"]
        self.change(pod)

    def create(self, uid: str, raw: Pod) -> None:
        raw["metadata"]["name"] = uid
        self.pods[uid] = raw
        self.change(raw)

    def change(self, pod: Pod) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.views.setdefault(pod["metadata"]["name"], []).append(_copy(pod))
        self.events.append((self._watch.observed, _copy(pod)))

    def delete(self, uid: str) -> None:
        self.events.append((self._watch.deleted, self.pods.pop(uid)))

    def deliver(self, most: int) -> None:
        for _ in range(min(most, len(self.events))):
            report, pod = self.events.pop(0)
            report(pod)

    def over(self) -> list[str]:
        """Return the overcommitted GPUs, computed from the grants of the bound pods."""
        held = Counter[str]()
        for pod in self.pods.values():
            text = pod["metadata"]["annotations"].get(words.ANNOTATION_GRANTS)
            if text and pod["spec"].get("nodeName"):
                for shares in grants.decode(text).values():
                    held.update({share.id: share.memory_bytes for share in shares})
        return [gpu for gpu, size in held.items() if size > GPU_BYTES]


def _copy(pod: Pod) -> Pod:
    metadata = {**pod["metadata"], "annotations": dict(pod["metadata"]["annotations"])}
    return {**pod, "metadata": metadata, "spec": dict(pod["spec"])}


async def _place(store: Store, verbs: Verbs, binder: Binder, uid: str) -> None:
    """Make a scheduling attempt, sometimes with an older version of the pod. If it fails, sometimes
    change the pod, as kube-scheduler does when it records the failure."""
    chance, views = store.chance, store.views[uid]
    raw = views[-1] if chance.random() < 0.7 else chance.choice(views[-3:])
    if raw["spec"].get("nodeName"):
        return
    among = chance.sample(calls.names(NODES), chance.randint(1, NODES))
    found = calls.filtered(verbs, raw, among).get("NodeNames") or []
    if not found:
        return
    node = chance.choice(found if chance.random() < 0.8 else among)
    if chance.random() < 0.8:
        ranked = json.loads(verbs.prioritize(calls.arguments(raw, found)))
        if chance.random() < 0.7:
            node = max(ranked, key=lambda each: each["Score"])["Host"]
    await asyncio.sleep(chance.random())
    wanted = BindingArguments("default", uid, uid, node)
    try:
        async with asyncio.timeout(chance.choice((0.5, 5.0, 30.0))):
            said = (await binder.bind(wanted)).error
    except TimeoutError:
        said = "no answer"
    pod = store.pods.get(uid)
    if said and pod and not pod["spec"].get("nodeName") and chance.random() < 0.3:
        store.change(pod)
    if not said:
        assert store.bound_to[uid] == node


@pytest.mark.parametrize("seed", range(150))
async def test_no_gpu_is_over_nothing_leaks_and_no_pod_has_two_places(seed: int) -> None:
    chance = random.Random(seed)
    state, guard = calls.state(NODES, GPUS), ManualLeaseGuard()
    store, verbs = Store(chance, state), Verbs(state)
    binder = Binder(state, store, guard, verbs, virtual_time.now)
    tries: set[asyncio.Task[None]] = set()
    for number in range(PODS):
        share = objects.container("main", gpu=chance.choice((100, 50, 60, 30)))
        store.create(f"u-{number}", calls.pod(f"u-{number}", share))
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
    """Change every pod once more, as kube-scheduler's retries do, and run `check_overdue`. Then
    exactly the amounts of the bound pods must be held."""
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
    assert not binder._jobs and not binder._sent
    assert state.overdue(1e9) == []
    assert not len(state.reservations)
    assert not state.fleet.reserved_bytes.any() and not state.fleet.reserved_core.any()
    for name in calls.names(NODES):
        row, other = state.fleet.row_of(name), fresh.fleet.row_of(name)
        assert state.fleet.used_bytes[row].tolist() == fresh.fleet.used_bytes[other].tolist()
        assert state.fleet.used_core[row].tolist() == fresh.fleet.used_core[other].tolist()
