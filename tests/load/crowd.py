"""A crowd: pods that come and go on a whole cluster, and check their limits continuously.

A crowd makes the checks of every load (generator.py) and two more. Every pod that fits must run.
The limits that containers report in their logs (inside.py) must be right.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from simgpu import config
from tests.load import inside
from tests.load.accounts import Share
from tests.load.generator import Load, LoadError
from tests.load.kinds import KINDS

_LOG_LINES: Final = 500
_SILENCE_S: Final = 60.0
"""A running container writes its first line within this time."""
_CONTEXT_BYTES: Final = config.load(config.DEFAULT_FILE).context_overhead_bytes
_NO_LOGS: Final = "unable to retrieve container logs for "
"""The kubelet answers this in place of a log until its runtime reports the container."""

Json = dict[str, Any]


@dataclass
class _Tenant:
    """fits_s: when the pod got a node or first fitted on one, None before. ran_s: when all its
    containers were first seen running. looks: number of the last check read, by container."""

    kind: str
    made_s: float
    fits_s: float | None = None
    waited: bool = False
    ran_s: float | None = None
    leaving: bool = False
    restarts: int = 0
    read_s: float = 0.0
    looks: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return self.ran_s is not None and not self.leaving


class Crowd(Load):
    """A load on a cluster whose nodes really run the pods."""

    mix = "crowd"
    timeout_s = 120.0

    def __init__(self, api: Kube, chance: random.Random) -> None:
        super().__init__(api, chance)
        self._there: dict[str, _Tenant] = {}

    def __len__(self) -> int:
        return sum(not tenant.leaving for tenant in self._there.values())

    # --- creation and deletion

    async def go(self) -> None:
        """Delete a random pod in any state. If it runs, its logs are read to the end first."""
        staying = [name for name, tenant in self._there.items() if not tenant.leaving]
        name = self.chance.choice(staying)
        tenant = self._there[name]
        if tenant.ran_s is not None and not await self._read(name, whole=True):
            return  # the kubelet does not answer now, so another call deletes the pod
        tenant.leaving = True
        await self.delete(name)

    async def clear(self) -> None:
        """Delete all pods in random order, after reading the logs of those that run. Return when
        the API server has no pod left."""
        deadline_s = time.monotonic() + self.timeout_s + len(self)
        while len(self):
            await self.go()
            self._in_time(deadline_s, "not all pods can be read and deleted")
        while self._there:
            await self.look()
            self._in_time(deadline_s, f"deleted pods that stay: {sorted(self._there)}")
            await asyncio.sleep(0.5)

    async def calm(self) -> None:
        """Wait until all pods that fit now are running. Others may be created meanwhile."""
        deadline_s = time.monotonic() + self.timeout_s
        owed = set(await self.look())
        while waiting := owed & set(await self.look()):
            self._in_time(deadline_s, f"they fit and do not run: {waiting}")
            await asyncio.sleep(0.5)

    async def _make(self, what: tuple[str, str]) -> None:
        await super()._make(what)
        name, kind = what
        self._there[name] = _Tenant(kind, time.monotonic())

    # --- checks

    async def look(self) -> Sequence[str]:
        """Check the API server's objects. Return the names of pods that fit but do not run."""
        begun_s = time.monotonic()
        made = await self.account()
        for name, tenant in list(self._there.items()):
            if name not in self.pods:
                if tenant.leaving:
                    del self._there[name]
                elif tenant.made_s < begun_s:
                    raise LoadError(f"{name} is gone, and this run did not delete it")
        fitting, waiting = made.fitting, []
        for name, pod in self.pods.items():
            there, uid = self._there.get(name), pod["metadata"]["uid"]
            if there is None or there.leaving:  # just created, or being deleted
                continue
            self._follow(name, pod, there, uid not in made.pending or uid in fitting)
            if there.fits_s is not None and there.ran_s is None:
                waiting.append(name)
                if self.waited_s(there.fits_s) > self.timeout_s:
                    raise LoadError(f"{name} fits and does not run: {_why(pod)}")
        running = sum(tenant.runs for tenant in self._there.values())
        self.figures.most_at_once = max(self.figures.most_at_once, running)
        return waiting

    def _follow(self, name: str, pod: Json, tenant: _Tenant, fits: bool) -> None:
        now_s, status = time.monotonic(), pod["status"]
        if status.get("phase") in ("Failed", "Succeeded"):
            raise LoadError(f"{name} has ended: {_why(pod)}")
        if not fits:
            tenant.fits_s, tenant.waited = None, True
        elif tenant.fits_s is None:
            tenant.fits_s = now_s if tenant.waited else tenant.made_s
        containers = status.get("containerStatuses", [])
        restarts = sum(each["restartCount"] for each in containers)
        runs = bool(containers) and all("running" in each["state"] for each in containers)
        if tenant.ran_s is None and runs:
            tenant.ran_s, tenant.restarts = now_s, restarts
            self.figures.ran += 1
            self.figures.restarts += restarts
            assert tenant.fits_s is not None
            self.wait_ended(tenant.fits_s)
        elif tenant.ran_s is not None and (not runs or restarts != tenant.restarts):
            raise LoadError(f"{name} ran, and has ended since: {_why(pod)}")

    async def read(self) -> None:
        """Read the log of the running pod whose log was not read for longest."""
        running = [(each.read_s, name) for name, each in self._there.items() if each.runs]
        if running:
            await self._read(min(running)[1])

    async def _read(self, name: str, whole: bool = False) -> bool:
        """Check a pod's log, and return whether it could be read. whole: return False also while
        one of its containers has written nothing."""
        tenant, pod = self._there[name], self.pods[name]
        tenant.read_s = time.monotonic()
        log = f"{self._path}/{name}/log?tailLines={_LOG_LINES}&container="
        containers = [container["name"] for container in pod["spec"]["containers"]]
        try:
            texts = {each: await self._api.text(f"{log}{each}") for each in containers}
        except KubeError:
            return False
        if any(text.startswith(_NO_LOGS) for text in texts.values()):
            return False
        shares = KINDS[tenant.kind].containers
        for (container, text), share in zip(texts.items(), shares, strict=True):
            self._judge(name, container, text, share)
            said = container in tenant.looks
            assert tenant.ran_s is not None
            if not said and time.monotonic() - tenant.ran_s > _SILENCE_S:
                raise LoadError(f"{name}/{container} runs and says nothing: {text!r}")
            if whole and not said:
                return False
        return True

    def _judge(self, name: str, container: str, text: str, share: Share | None) -> None:
        looks, granted = self._there[name].looks, inside.uuids(self.pods[name], container)
        size = inside.Size(_gpu_bytes(self.devices), _CONTEXT_BYTES)
        for line in text.splitlines():
            number, last = inside.number(line), looks.get(container, 0)
            if 0 < number <= last:
                continue
            wrong = inside.verdict(line, share, granted, size)
            if wrong or number != last + 1:
                what = f"{name}/{container}, look {number} after {last}"
                raise LoadError(f"{what}: {wrong or line}")
            looks[container] = number
            self.figures.looks_inside += 1
            self.figures.short += share is not None and inside.is_short(line, share, size)

    def _in_time(self, deadline_s: float, what: str) -> None:
        if time.monotonic() > deadline_s:
            raise LoadError(f"for too long: {what}")


def _gpu_bytes(devices: Sequence[Json]) -> int:
    """Return the size of the GPUs, which all are of one size."""
    entries = (entry for device in devices for entry in device["spec"]["devices"])
    (size,) = {int(entry["resources"]["koordinator.sh/gpu-memory"]) for entry in entries}
    return size


def _why(pod: Json) -> str:
    shown = ("phase", "reason", "message", "containerStatuses", "conditions")
    return json.dumps({key: pod["status"].get(key) for key in shown})
