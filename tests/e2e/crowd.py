"""A crowd of tenants (tenants.py) that come and go in a cluster, all of them watched.

At every look the grants are added up by another program than ours (tests/cluster/accountant.py),
and every pod that fits owes itself to run; what the containers say of their limits is read from
their logs until they go. Raises EndureError at the first thing that is not right. Knows nothing of
what is killed meanwhile but what `killed` is told.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import aiohttp

from simgpu import config
from simgpu.lab.api import Api, ApiError, each
from tests.cluster.accountant import books
from tests.e2e import tenants
from tests.e2e.figures import EndureError, Figures
from tests.e2e.tenants import KINDS

PATIENCE_S: Final = 120.0
"""A pod that fits runs within this, from its coming, or from the last kill."""
AFTER_A_KILL_S: Final = 10.0
"""A pod that fits within this after a kill may have been delayed by it."""
_LOG_LINES: Final = 500
_SILENCE_S: Final = 60.0
"""A container that runs says something within this."""
_CONTEXT_BYTES: Final = config.load(config.DEFAULT_FILE).context_overhead_bytes
_PODS: Final = "/api/v1/namespaces/default/pods"
_DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
_UNREACHABLE: Final = (ApiError, aiohttp.ClientError, TimeoutError)
_NO_LOGS: Final = "unable to retrieve container logs for "
"""What kubelet answers, as if it were a log, while its runtime does not tell of the container."""
_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.?\d*Z (.*)")

Json = dict[str, Any]


@dataclass
class _Tenant:
    """fits_s: since when it has a node, or room on one; None while it has none. ran_s: when all its
    containers were first seen to run. looks: by container, the last one read, and when it was."""

    kind: str
    made_s: float
    fits_s: float | None = None
    waited: bool = False
    ran_s: float | None = None
    leaving: bool = False
    restarts: int = 0
    read_s: float = 0.0
    looks: dict[str, tuple[int, float]] = field(default_factory=dict)


class Crowd:
    """api: of somebody who may do everything in the namespace `default`."""

    def __init__(self, api: Api, chance: random.Random) -> None:
        self.figures = Figures()
        self._api = api
        self._chance = chance
        self._there: dict[str, _Tenant] = {}
        self._pods: dict[str, Json] = {}
        self._devices: Sequence[Json] = ()
        self._kills: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return sum(not tenant.leaving for tenant in self._there.values())

    # --- they come and go

    async def come(self, count: int) -> None:
        kinds = [kind for kind, (share, _) in KINDS.items() for _ in range(share)]
        first = self.figures.made
        self.figures.made += count
        await each(
            [(f"t{first + at}", self._chance.choice(kinds)) for at in range(count)], self._make
        )

    async def go(self) -> None:
        """One of them, whatever its state: read to the end first, if it runs."""
        staying = [name for name, tenant in self._there.items() if not tenant.leaving]
        name = self._chance.choice(staying)
        tenant = self._there[name]
        if tenant.ran_s is not None and not await self._read(name, whole=True):
            return  # kubelet does not answer now: it stays for another time
        tenant.leaving = True
        await self._api.ask("DELETE", f"{_PODS}/{name}")
        self.figures.deleted += 1

    async def clear(self, within_s: float = PATIENCE_S) -> None:
        """All go, in random order; return when the API server has none of them. Every one that
        runs is read to the end."""
        deadline_s = time.monotonic() + within_s + len(self)
        while len(self):
            await self.go()
            self._in_time(deadline_s, "not all pods can be read and deleted")
        while self._there:
            await self.look()
            self._in_time(deadline_s, f"deleted pods that stay: {sorted(self._there)}")
            await asyncio.sleep(0.5)

    async def calm(self, within_s: float = PATIENCE_S) -> None:
        """Until all that fit now run; others may come meanwhile."""
        deadline_s = time.monotonic() + within_s
        owed = set(await self.look())
        while waiting := owed & set(await self.look()):
            self._in_time(deadline_s, f"they fit and do not run: {waiting}")
            await asyncio.sleep(0.5)

    def killed(self, what: str) -> None:
        self._kills.append((time.monotonic(), what))
        self.figures.kills[what] += 1

    async def _make(self, what: tuple[str, str]) -> None:
        name, kind = what
        await self._api.ask("POST", _PODS, tenants.pod(name, kind))
        self._there[name] = _Tenant(kind, time.monotonic())

    # --- they are looked at

    async def look(self) -> Sequence[str]:
        """Judge what the API server has of them; those that fit and do not run."""
        begun_s = time.monotonic()
        if not self._devices:
            self._devices = (await self._api.ask("GET", _DEVICES))["items"]
        listed = (await self._api.ask("GET", _PODS))["items"]
        self._pods = {pod["metadata"]["name"]: pod for pod in listed}
        self.figures.looks_at_books += 1
        made = books(
            [p for p in listed if p["metadata"]["labels"]["kind"] != "plain"], self._devices
        )
        if made.wrong:
            raise EndureError("\n".join(made.wrong))
        for name, tenant in list(self._there.items()):
            if name not in self._pods:
                if tenant.leaving:
                    del self._there[name]
                elif tenant.made_s < begun_s:
                    raise EndureError(f"{name} is gone, and nobody of us deleted it")
        fitting, waiting = made.fitting, []
        for name, pod in self._pods.items():
            if (
                name not in self._there or self._there[name].leaving
            ):  # it has just been made, or goes
                continue
            tenant, uid = self._there[name], pod["metadata"]["uid"]
            self._follow(name, pod, tenant, uid not in made.pending or uid in fitting)
            if tenant.fits_s is not None and tenant.ran_s is None:
                waiting.append(name)
                since_s = max(tenant.fits_s, self._kills[-1][0] if self._kills else 0)
                if time.monotonic() - since_s > PATIENCE_S:
                    raise EndureError(f"{name} fits and does not run: {_why(pod)}")
        running = sum(t.ran_s is not None and not t.leaving for t in self._there.values())
        self.figures.most_at_once = max(self.figures.most_at_once, running)
        return waiting

    def _follow(self, name: str, pod: Json, tenant: _Tenant, fits: bool) -> None:
        """Of one that stays."""
        now_s = time.monotonic()
        status = pod["status"]
        if status.get("phase") in ("Failed", "Succeeded"):
            raise EndureError(f"{name} has ended: {_why(pod)}")
        if not fits:
            tenant.fits_s, tenant.waited = None, True
        elif tenant.fits_s is None:
            tenant.fits_s = now_s if tenant.waited else tenant.made_s
        containers = status.get("containerStatuses", [])
        restarts = sum(each["restartCount"] for each in containers)
        runs = bool(containers) and all("running" in each["state"] for each in containers)
        if tenant.ran_s is None and runs:
            tenant.ran_s = now_s
            self.figures.ran += 1
            self.figures.restarts += restarts
            assert tenant.fits_s is not None
            whose, since_s = self._delayed_by(tenant.fits_s)
            self.figures.waits_s[whose].append(now_s - since_s)
            tenant.restarts = restarts
        elif tenant.ran_s is not None and (not runs or restarts != tenant.restarts):
            raise EndureError(f"{name} ran, and has ended since: {_why(pod)}")

    def _delayed_by(self, fits_s: float) -> tuple[str, float]:
        """The kill that may have, and since when the pod has waited after it."""
        for at_s, what in reversed(self._kills):
            if fits_s < at_s or fits_s - at_s < AFTER_A_KILL_S:
                return what, max(at_s, fits_s)
        return "", fits_s

    async def read(self) -> None:
        """What one of them has said of its limits, the one that was not read for longest."""
        running = [
            (tenant.read_s, name)
            for name, tenant in self._there.items()
            if tenant.ran_s is not None and not tenant.leaving
        ]
        if running:
            await self._read(min(running)[1])

    async def _read(self, name: str, whole: bool = False) -> bool:
        """Judge what it says; False where it cannot be read now. whole: until each of its
        containers has said something."""
        tenant, pod = self._there[name], self._pods[name]
        tenant.read_s = time.monotonic()
        try:
            texts = {
                container["name"]: await self._api.text(
                    f"{_PODS}/{name}/log?container={container['name']}"
                    f"&timestamps=true&tailLines={_LOG_LINES}"
                )
                for container in pod["spec"]["containers"]
            }
        except _UNREACHABLE:
            return False
        if any(text.startswith(_NO_LOGS) for text in texts.values()):
            return False
        for (container, text), share in zip(texts.items(), KINDS[tenant.kind][1], strict=True):
            granted = tenants.uuids(pod, container)
            self._judge(f"{name}/{container}", tenant, container, text, share, granted)
            said = container in tenant.looks
            assert tenant.ran_s is not None
            if not said and time.monotonic() - tenant.ran_s > _SILENCE_S:
                raise EndureError(f"{name}/{container} runs and says nothing: {text!r}")
            if whole and not said:
                return False
        return True

    def _judge(
        self,
        where: str,
        tenant: _Tenant,
        container: str,
        text: str,
        share: tenants.Share | None,
        granted: Sequence[str],
    ) -> None:
        size = tenants.Size(_card_bytes(self._devices), _CONTEXT_BYTES)
        for stamped in text.splitlines():
            matched = _STAMP.fullmatch(stamped)
            if matched is None:
                raise EndureError(f"{where} says {stamped!r}")
            number = tenants.number(matched[2])
            last, last_s = tenant.looks.get(container, (0, 0.0))
            if 0 < number <= last:
                continue
            wrong = tenants.verdict(matched[2], share, granted, size)
            if wrong or number != last + 1:
                raise EndureError(f"{where}, look {number} after {last}: {wrong or matched[2]}")
            at_s = datetime.fromisoformat(f"{matched[1]}+00:00").timestamp()
            tenant.looks[container] = (number, at_s)
            self.figures.looks_inside += 1
            self.figures.short += share is not None and tenants.is_short(matched[2], share, size)
            if last:
                self.figures.silence_s = max(self.figures.silence_s, at_s - last_s)

    def _in_time(self, deadline_s: float, what: str) -> None:
        if time.monotonic() > deadline_s:
            raise EndureError(f"for too long: {what}")


def _card_bytes(devices: Sequence[Json]) -> int:
    """All cards are of one size."""
    sizes = {
        int(entry["resources"]["koordinator.sh/gpu-memory"])
        for device in devices
        for entry in device["spec"]["devices"]
    }
    (size,) = sizes
    return size


def _why(pod: Json) -> str:
    status = pod["status"]
    said = [status.get(key, "") for key in ("phase", "reason", "message")]
    states = [each["state"] for each in status.get("containerStatuses", [])]
    unmet = [c.get("message", "") for c in status.get("conditions", []) if c["status"] != "True"]
    return f"{' '.join(filter(None, said))} {states} {' '.join(filter(None, unmet))}"
