"""Keeps what the API server says of this node true: its Device, its totals, its label.

Compares what is there, which a watch tells, with what shall be, and writes the difference, whatever
changed it: the kubelet sets totals to zero when it starts. Writes nothing while it does not know
all that goes in. Decides nothing: totals.py has the rules.

Two programs that each put right what the other wrote load the API server without end, and the
node's totals mean nothing meanwhile. So the agent counts how often what it wrote was taken back,
and stops writing for a while.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from contract import names
from contract.log_lines import Line
from kube.client import Kube, KubeError
from nri_plugin import objects
from nri_plugin.bounds import Bounds
from nri_plugin.inventory import Inventory
from nri_plugin.ledger import Hold
from nri_plugin.metrics import Metrics
from nri_plugin.model import Gpu
from nri_plugin.objects import NodeFacts
from nri_plugin.readiness import Readiness
from nri_plugin.totals import Entry, entries, granted_gpus, totals

_LOG: Final = logging.getLogger(__name__)

Json = Mapping[str, Any]

NODES: Final = "/api/v1/nodes"
DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_TICK_S: Final = 1.0
_BETWEEN_S: Final = 0.5
"""After a write, until the watch has told of it."""
_FAILED_S: Final = 5.0

CONTEST_WRITES: Final = 5
"""More than a kubelet does, which sets totals to zero when it starts."""
CONTEST_S: Final = 600.0
"""In which so many are a contest; for as long the agent then writes nothing."""
_MANAGER: Final = "gpuslice-agent"
"""The agent's name in managedFields: the first part of its user agent."""
_FIELDS: Final = re.compile("f:devices|f:koordinator.sh/gpu")


class NodeStatus:
    """holds: what containers that live hold. readiness: the agent's; told of a contest. look_s: how
    old what NVML said may be. Its `node` and `device` are the watches' sinks. now: a monotonic
    clock in seconds.
    """

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        inventory: Inventory,
        bounds: Bounds,
        holds: Callable[[], Sequence[Hold]],
        readiness: Readiness,
        look_s: Callable[[], float],
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._inventory = inventory
        self._bounds = bounds
        self._holds = holds
        self._readiness = readiness
        self._look_s = look_s
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._said = ""
        self._conditions = True
        """Whether the API server keeps conditions; older definitions of a Device have none."""
        self._contests = {"Device": Contest(now), "node": Contest(now)}
        self._listed: Sequence[Entry] = ()
        """What the Device was to list: it may be deleted, and a dead GPU tells nothing anew."""
        self.node = One(node_name, self._changed)
        self.device = One(node_name, self._changed)

    @property
    def node_uid(self) -> str:
        return objects.node(self.node.raw).uid if self.node.raw else ""

    async def run(self, known: Callable[[], bool]) -> None:
        """Until cancelled. known: whether node, Device and pods have been listed."""
        while True:
            self._inventory.look(self._look_s())
            pause_s = 0.0
            self._readiness.cluster = self._contest()
            if known():
                try:
                    pause_s = _BETWEEN_S if await self._mend() else 0.0
                except KubeError as error:
                    pause_s = _FAILED_S if error.status != 409 else _BETWEEN_S
                    self._say(str(error))
                else:
                    self._say("")
            await asyncio.sleep(pause_s)
            await self._wake()

    async def _wake(self) -> None:
        """At the next change, or after a while: GPUs and pods have no event."""
        try:
            async with asyncio.timeout(_TICK_S):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def _mend(self) -> bool:
        """Whether anything was written."""
        if not self.node.raw:
            self._say(f"there is no node {self._node_name}: is --node-name its name?")
            return False
        facts = objects.node(self.node.raw)
        now = objects.entries(self.device.raw)
        before = [*{each.gpu.uuid: each for each in (*self._listed, *now)}.values()]
        holds = self._holds()
        granted = {uuid for hold in holds for uuid in hold.parts} | self._bounds.granted(before)
        told = granted_gpus(holds, self._bounds.allocated())
        # Until NVML has answered once, what is listed is all that is known.
        known = self._inventory.problem is None or self._inventory.seen
        listed = entries(self._gpus(), before, granted, told) if known else now
        self._listed = listed if known else before
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        shall_at = at if self._conditions else ""
        device = objects.device(self._node_name, facts.uid, listed, self.device.raw, shall_at)
        written = False
        if device is not None and (listed or self.device.raw):
            written = await self._write_device(device, listed)
        wanted = totals(listed, granted, facts.excluded, self._bounds.asked())
        return await self._write_node(wanted, facts) or written

    def _gpus(self) -> Sequence[Gpu]:
        """What NVML shows, with what keeps a GPU from being brought to containers."""
        unusable = self._readiness.unusable
        return [
            replace(gpu, problem=gpu.problem or unusable.get(gpu.uuid, ""))
            for gpu in self._inventory.seen
        ]

    def _contest(self) -> str | None:
        for what, raw in (("Device", self.device.raw), ("node", self.node.raw)):
            if self._contests[what].lasts:
                other = other_writer(raw) or "another program"
                return (
                    f"{what} {self._node_name}: {other} changes what this agent writes of its GPUs:"
                    " must have one writer; switch off the other's report of GPUs on this node, or"
                    " take gpuslice's agent off it"
                )
        return None

    async def _write_device(self, device: Json, listed: Sequence[Entry]) -> bool:
        """Whether it was written."""
        raw = self.device.raw
        if not self._contests["Device"].may_write(listed, _version(raw)):
            return False
        if raw:
            path = f"{DEVICES}/{self._node_name}"
            stored = await self._write("device", self._kube.patch(path, device))
        else:
            stored = await self._write("device", self._kube.post(DEVICES, device))
        if listed and not objects.has_conditions(stored):
            self._conditions = False
        return True

    async def _write_node(self, wanted: Mapping[str, int], facts: NodeFacts) -> bool:
        path = f"{NODES}/{self._node_name}"
        capacity = objects.capacity(wanted, facts)
        told = capacity is not None and self._contests["node"].may_write(
            wanted, _version(self.node.raw)
        )
        if told:
            await self._write("node", self._kube.patch(f"{path}/status", capacity or {}))
        label = not self._readiness.problems and not facts.isolates
        if label:
            await self._write("node", self._kube.patch(path, objects.isolates()))
        return told or label

    async def _write(self, what: str, work: Any) -> Json:
        """The object as it is stored."""
        try:
            stored: Json = await work
        except KubeError:
            self._metrics.api_writes.labels(what, "failed").inc()
            raise
        self._metrics.api_writes.labels(what, "written").inc()
        _LOG.info(Line("told the API server", object=what))
        return stored

    def _say(self, problem: str) -> None:
        if problem and problem != self._said:
            _LOG.warning(Line("what the API server says of this node is not kept", error=problem))
        self._said = problem


def _version(raw: Json) -> str:
    return str(raw.get("metadata", {}).get("resourceVersion", ""))


class One:
    """A watch's sink for one object. raw: as it is; empty where there is none."""

    def __init__(self, name: str, changed: asyncio.Event) -> None:
        self.raw: Json = {}
        self._name = name
        self._changed = changed

    def seen(self, raw: Json) -> str:
        name = str(raw["metadata"]["name"])
        if name != self._name:
            return ""
        self.raw = raw
        self._changed.set()
        return name

    def lost(self, raw: Json) -> None:
        if raw["metadata"]["name"] == self._name:
            self.raw = {}
            self._changed.set()

    def listed(self, keys: set[str]) -> None:
        if not keys:
            self.raw = {}
            self._changed.set()


class Contest:
    """Whether another program writes the same fields of one object. now: a monotonic clock in
    seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._taken_back: deque[float] = deque(maxlen=CONTEST_WRITES)
        self._wanted: object = None
        self._version = ""
        self._silent_until = self._over_at = now()

    def may_write(self, wanted: object, version: str) -> bool:
        """Called where the object differs from what is wanted. version: its resourceVersion."""
        now = self._now()
        if now < self._silent_until:
            return False
        if self._wanted == wanted and version != self._version:
            self._taken_back.append(now)
            if self._over_at > now:
                self._over_at = now + CONTEST_S
        self._wanted, self._version = wanted, version
        if len(self._taken_back) < CONTEST_WRITES or now - self._taken_back[0] > CONTEST_S:
            return True
        self._taken_back.clear()
        self._wanted = None
        self._silent_until, self._over_at = now + CONTEST_S, now + 2 * CONTEST_S
        return False

    @property
    def lasts(self) -> bool:
        """Whether there was a contest, and nothing tells yet that it is over."""
        return self._now() < self._over_at


def other_writer(raw: Json) -> str:
    """By managedFields, which program beside the agent wrote the object last; "": not known."""
    others = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in raw.get("metadata", {}).get("managedFields") or ()
        if entry.get("manager") != _MANAGER and _FIELDS.search(str(entry.get("fieldsV1")))
    ]
    return max(others)[1] if others else ""
