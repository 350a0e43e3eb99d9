"""Random runs of two pods in virtual time. Once one pod lists, no write of the other may arrive.

Each pod has a kube-scheduler that elects a leader by client-go's rules, and an extender whose watch
may lag or list again. Pods are killed, drained and started. An extender may be halted between its
check of the clock and the POST. The API server's policy refuses a writer that is not the holder.
Halts and releases are safe only with that policy, so runs without it have neither.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from scheduler.kubernetes.facts import SchedulerLease
from scheduler.leadership import POST_S, Leadership
from tests.virtual_time import loop_factory as loop_factory
from tests.virtual_time import now

LASTS_S = 600.0
LEASE_S, RENEW_DEADLINE_S, RETRY_S = 15.0, 10.0, 2.0


@dataclass
class Cluster:
    """A cluster of two pods. lists: for each writer, when the list before its first write began.
    landed: the time and the writer of each write that the API server applied."""

    chance: random.Random
    has_policy: bool
    lease: SchedulerLease = field(default_factory=SchedulerLease)
    watches: list[asyncio.Queue[SchedulerLease]] = field(default_factory=list)
    lists: dict[str, float] = field(default_factory=dict)
    landed: list[tuple[float, str]] = field(default_factory=list)
    posts: set[asyncio.Task[None]] = field(default_factory=set)

    def write(self, lease: SchedulerLease) -> None:
        self.lease = lease
        for watch in self.watches:
            watch.put_nowait(lease)

    async def up_to(self, most_s: float) -> None:
        await asyncio.sleep(self.chance.random() * most_s)

    async def post(self, writer: str) -> None:
        """Send a write, which spends some seconds on its way, and some at the server."""
        await self.up_to(POST_S)
        if self.has_policy and self.chance.random() < 0.2:
            await self.up_to(60)  # a halted process does not time out
        if not self.has_policy or self.lease.holder == writer:
            await self.up_to(POST_S)
            self.landed.append((now(), writer))


class Pod:
    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.chance = cluster, cluster.chance
        self.identity = f"pod-{number}_x"
        self.leadership = Leadership(f"pod-{number}", now, now)
        self.watch: asyncio.Queue[SchedulerLease] = asyncio.Queue()
        self.watch.put_nowait(cluster.lease)
        cluster.watches.append(self.watch)
        works = (self._elect(), self._follow(), self._bind(), self.leadership.run(self._list))
        self.tasks = [asyncio.create_task(each) for each in works]

    async def end(self, drained: bool) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        self.cluster.watches.remove(self.watch)
        if drained and self.cluster.lease.holder == self.identity:
            self.cluster.write(SchedulerLease("", 1.0, 0.0, now()))

    def _renew(self, acquired_s: float) -> None:
        self.cluster.write(SchedulerLease(self.identity, LEASE_S, acquired_s, now()))

    async def _elect(self) -> None:
        seen, seen_s, renewed_s = self.cluster.lease, now(), -1.0
        while True:
            now_s, lease = now(), self.cluster.lease
            if lease != seen:
                seen, seen_s = lease, now_s
            if lease.holder == self.identity:
                if now_s - renewed_s > RENEW_DEADLINE_S:
                    return  # kube-scheduler could not renew the Lease in time, and exits
                if self.chance.random() < 0.7:
                    renewed_s = now_s
                    self._renew(lease.acquired_s)
            elif renewed_s > 0:
                return  # kube-scheduler has lost the Lease, and exits
            elif not lease.holder or now_s - seen_s >= LEASE_S:
                renewed_s = now_s
                self._renew(now_s)
            await asyncio.sleep(RETRY_S * (1 + 0.1 * self.chance.random()))

    async def _follow(self) -> None:
        while True:
            lease = await self.watch.get()
            listed = self.chance.random() < 0.02
            if listed or self.chance.random() < 0.05:
                await self.cluster.up_to(20)
            while listed and not self.watch.empty():
                lease = self.watch.get_nowait()
            self.leadership.observe(lease)

    async def _list(self) -> None:
        self.listed_s = now()
        await self.cluster.up_to(3)

    async def _bind(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            if self.leadership.may_write():
                self.cluster.lists.setdefault(self.identity, self.listed_s)
                post = asyncio.create_task(self.cluster.post(self.leadership.writer))
                self.cluster.posts.add(post)
                post.add_done_callback(self.cluster.posts.discard)


async def _run(seed: int, has_policy: bool) -> Cluster:
    chance = random.Random(seed)
    cluster = Cluster(chance, has_policy)
    pods, number = [Pod(cluster, number) for number in range(2)], 2
    while now() < LASTS_S:
        await asyncio.sleep(10 + chance.random() * 60)
        pod = pods.pop(chance.randrange(len(pods)))
        await pod.end(drained=has_policy and chance.random() < 0.5)
        pods.append(Pod(cluster, number))
        number += 1
    for pod in pods:
        await pod.end(drained=False)
    await asyncio.gather(*cluster.posts)
    return cluster


@pytest.mark.parametrize("has_policy", [True, False])
@pytest.mark.parametrize("seed", range(20))
async def test_no_write_arrives_after_the_next_terms_list(seed: int, has_policy: bool) -> None:
    cluster = await _run(seed, has_policy)
    writers = {writer for _, writer in cluster.landed}
    assert len(writers) >= 3, "several pods bind in turn"
    for at_s, writer in cluster.landed:
        for other, listed_s in cluster.lists.items():
            assert other == writer or listed_s < cluster.lists[writer] or at_s <= listed_s
