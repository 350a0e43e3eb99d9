"""Keeps what the API server says of this node true: its Device, its totals, its label.

Compares what is there, which a watch tells, with what shall be, and writes the difference; so it
does not matter who changed it, or how often: the kubelet sets totals to zero when it starts. Writes
nothing while it does not know all that goes in. Decides nothing: totals.py has the rules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from contract import names
from contract.log_lines import Line
from kube.client import Kube, KubeError
from nri_plugin import bygone, objects
from nri_plugin.bounds import Bounds
from nri_plugin.inventory import Inventory
from nri_plugin.ledger import Hold
from nri_plugin.metrics import Metrics
from nri_plugin.objects import NodeFacts
from nri_plugin.totals import Entry, entries, totals

_LOG: Final = logging.getLogger(__name__)

Json = Mapping[str, Any]

NODES: Final = "/api/v1/nodes"
DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_TICK_S: Final = 1.0
_BETWEEN_S: Final = 0.5
"""After a write, until the watch has told of it; who fights with us for a field does so slowly."""
_FAILED_S: Final = 5.0


class Upkeep:
    """holds: what containers that live hold. ready: whether the agent is. look_s: how old
    what NVML said may be. Its `node` and `device` are the watches' sinks; somebody must `run` it.
    """

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        inventory: Inventory,
        bounds: Bounds,
        holds: Callable[[], Sequence[Hold]],
        ready: Callable[[], bool],
        look_s: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._inventory = inventory
        self._bounds = bounds
        self._holds = holds
        self._ready = ready
        self._look_s = look_s
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._said = ""
        self._listed: Sequence[Entry] = ()
        """What the Device was to list: it may be deleted, and a dead card tells nothing anew."""
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
        """At the next change, or after a while: cards and pods have no event."""
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
        before = [*{each.card.uuid: each for each in (*self._listed, *now)}.values()]
        holds = self._holds()
        granted = {uuid for hold in holds for uuid in hold.parts} | self._bounds.granted(before)
        told = bygone.cards(holds, self._bounds.allocated())
        # Until NVML has answered once, what is listed is all that is known.
        known = self._inventory.problem is None or self._inventory.seen
        listed = entries(self._inventory.seen, before, granted, told) if known else now
        self._listed = listed if known else before
        device = objects.device(self._node_name, facts.uid, listed, self.device.raw)
        written = False
        if device is not None and (listed or self.device.raw):
            await self._write_device(device)
            written = True
        wanted = totals(listed, granted, facts.excluded, self._bounds.asked())
        return await self._write_node(wanted, facts) or written

    async def _write_device(self, device: Json) -> None:
        path = f"{DEVICES}/{self._node_name}"
        if self.device.raw:
            await self._write("device", self._kube.patch(path, device))
        else:
            await self._write("device", self._kube.post(DEVICES, device))

    async def _write_node(self, wanted: Mapping[str, int], facts: NodeFacts) -> bool:
        path = f"{NODES}/{self._node_name}"
        capacity = objects.capacity(wanted, facts)
        if capacity is not None:
            await self._write("node", self._kube.patch(f"{path}/status", capacity))
        label = self._ready() and not facts.isolates
        if label:
            await self._write("node", self._kube.patch(path, objects.isolates()))
        return capacity is not None or label

    async def _write(self, what: str, work: Any) -> None:
        try:
            await work
        except KubeError:
            self._metrics.api_writes.labels(what, "failed").inc()
            raise
        self._metrics.api_writes.labels(what, "written").inc()
        _LOG.info(Line("told the API server", object=what))

    def _say(self, problem: str) -> None:
        if problem and problem != self._said:
            _LOG.warning(Line("what the API server says of this node is not kept", error=problem))
        self._said = problem


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
