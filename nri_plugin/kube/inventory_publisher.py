"""Keeps the node's Device object, and its Node's capacity and label, equal to the desired state.

The publisher compares the watched objects with the desired state (totals.py) and writes the
difference. It writes nothing until all inputs are known. Two programs could overwrite each other's
values forever. Therefore the publisher counts how often its writes are reverted, and then pauses.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import NODE_RESOURCES
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from gpuslice.kube.log_lines import Line
from nri_plugin.containers.parts import Parts
from nri_plugin.gpu.inventory import pace_s
from nri_plugin.policy import kube_objects
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.gpu_modes import GpuModes, Mode
from nri_plugin.policy.kube_objects import NodeFacts
from nri_plugin.policy.other_plugins import Sign
from nri_plugin.policy.totals import Entry, entries, granted_gpus, totals

_LOG: Final = logging.getLogger(__name__)

NODES: Final = "/api/v1/nodes"
DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_TICK_S: Final = 1.0
_BETWEEN_S: Final = 0.5
"""Pause after a write, in which the watch usually reports the written object."""
_FAILED_S: Final = 5.0

CONTEST_WRITES: Final = 5
"""Reverted writes within CONTEST_S that count as a contest. A starting kubelet, which sets totals
to zero, reverts fewer."""
CONTEST_S: Final = 600.0
"""The period in which reverted writes are counted, and the agent's pause after a contest."""
_FIELDS: Final = re.compile(rf"f:(devices|{'|'.join(map(re.escape, NODE_RESOURCES))})\b")


class InventoryPublisher:
    """modes: where `run` records which GPUs the Node excludes, and other device plugins. now: a
    monotonic clock in seconds. The attributes `node` and `device` receive the watched objects."""

    def __init__(
        self, kube: Kube, parts: Parts, modes: GpuModes, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube = kube
        self._parts = parts
        self._modes = modes
        self._now = now
        self._node_name = parts.settings.node_name
        self._changed = asyncio.Event()
        self._logged_problem = ""
        self._conditions = True
        """Whether the API server stores a Device's conditions, which older CRDs do not have."""
        self._contests = {"Device": Contest(now), "node": Contest(now)}
        self.listed: Sequence[Entry] = ()
        """The last desired entries of the Device. They describe a GPU that has failed since, even
        if the Device object was deleted."""
        self.node, self.device = One(self._changed), One(self._changed)

    @property
    def node_uid(self) -> str:
        return kube_objects.node(self.node.raw).uid if self.node.raw else ""

    @property
    def withdrawn(self) -> bool:
        """Whether the Device offers no GPU."""
        return not any(entry.healthy for entry in kube_objects.entries(self.device.raw))

    async def run(self, known: Callable[[], bool]) -> None:
        """Run until cancelled. known: whether Node, Device and pods have been listed."""
        while True:
            self._query_gpus()
            pause_s = 0.0
            self._parts.readiness.cluster = self._contest()
            if known():
                try:
                    pause_s = _BETWEEN_S if await self._mend() else 0.0
                except KubeError as error:
                    pause_s = _FAILED_S if error.status != 409 else _BETWEEN_S
                    self._log(str(error))
                else:
                    self._log("")
            await asyncio.sleep(pause_s)
            await self._wake()

    def _query_gpus(self) -> None:
        chosen, inventory = self._parts.settings, self._parts.inventory
        shortest_s, longest_s = chosen.inventory_interval_s, chosen.inventory_interval_most_s
        inventory.query_if_older(pace_s(inventory.took_s, shortest_s, longest_s))

    async def _wake(self) -> None:
        """Wait for a change of the Node or Device, at most _TICK_S. Changes of GPUs and pods do not
        end the wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await self._changed.wait()
        self._changed.clear()

    async def _mend(self) -> bool:
        """Write what differs from the desired state. Return whether anything was written."""
        if not self.node.raw:
            name = self._node_name
            self._log(f"--node-name: invalid value {name}: must be the name of this host's Node")
            return False
        facts = kube_objects.node(self.node.raw)
        self._note(facts)
        now = kube_objects.entries(self.device.raw)
        before = [*{each.gpu.uuid: each for each in (*self.listed, *now)}.values()]
        ledger, bound_pods = self._parts.ledger, self._parts.bound_pods
        inventory = self._parts.inventory
        granted = ledger.gpus() | bound_pods.granted(before)
        reconstructed = granted_gpus(ledger.holds(), bound_pods.allocated())
        # Until NVML has answered, the desired entries are those of the existing Device.
        known = inventory.problem is None or inventory.seen
        gpus = inventory.with_problems(self._parts.readiness.unusable)
        desired = entries(gpus, before, granted, reconstructed) if known else now
        listed = [self._with_mode(entry) for entry in desired]
        self.listed = listed if known else before
        shown, leaves = listed, self._parts.claims.leaves
        if by_claims := self._parts.claims.now is FrontEnd.CLAIMS:
            shown, granted = [], frozenset()
        elif leaves:
            shown = [replace(entry, mode=Mode.EXCLUDED, why=leaves) for entry in listed]
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        shall_at = at if self._conditions else ""
        device = kube_objects.device(self._node_name, facts.uid, shown, self.device.raw, shall_at)
        written = False
        if device is not None and (self.device.raw or (shown and not leaves)):
            written = await self._write_device(device, shown)
        resources = () if by_claims else self._parts.settings.node_resources
        wanted = totals(shown, granted, bound_pods.requested(), resources)
        return await self._write_node(wanted, facts) or written

    def _note(self, facts: NodeFacts) -> None:
        """Record in the modes which GPUs the Node's annotation excludes, and whether another device
        plugin offers GPUs of this node."""
        self._modes.excluded = facts.excluded
        # If the agent offers whole GPUs itself, the Node's nvidia.com/gpu may be the agent's own.
        # Then only device_plugins.py detects another plugin.
        offered = {} if self._modes.offer else facts.plugin_gpus
        text = ", ".join(f"{key}: {count}" for key, count in offered.items())
        sign = f"status.allocatable of the node has {text}" if text else ""
        self._modes.note("node", Sign(sign) if sign else None, self._now())
        self._modes.operator = facts.operator
        chosen, front_ends = self._parts.settings, self._parts.claims
        obstacle = "--whole-gpus is not off" if chosen.whole_gpus else self._parts.readiness.claims
        problem = front_ends.want(facts.front_end, chosen.front_end, obstacle or "")
        self._parts.readiness.label = problem or None

    def _with_mode(self, entry: Entry) -> Entry:
        mode, why = self._modes.mode(entry.gpu)
        return replace(entry, mode=mode, why=why, limits=self._parts.readiness.limits.in_force)

    def _contest(self) -> str | None:
        for what, raw in (("Device", self.device.raw), ("node", self.node.raw)):
            if self._contests[what].lasts:
                other = other_writer(raw) or "another program"
                return (
                    f"{what} {self._node_name}: {other} overwrites this agent's values of its GPUs:"
                    " must have one writer; disable the other one's report of GPUs on this node, or"
                    " remove gpuslice's agent from it"
                )
        return None

    async def _write_device(self, device: Json, listed: Sequence[Entry]) -> bool:
        """Write the Device, except during a contest. Return whether it was written."""
        raw, contest = self.device.raw, self._contests["Device"]
        if not contest.may_write(listed, _version(raw)):
            return False
        if raw:
            path = f"{DEVICES}/{self._node_name}"
            stored = await self.write("device", self._kube.patch(path, device))
        else:
            stored = await self.write("device", self._kube.post(DEVICES, device))
        contest.written(listed, _version(raw))
        if listed and not kube_objects.has_conditions(stored):
            self._conditions = False
        return True

    async def _write_node(self, wanted: Mapping[str, int], facts: NodeFacts) -> bool:
        path = f"{NODES}/{self._node_name}"
        capacity = kube_objects.capacity(wanted, facts)
        contest, version = self._contests["node"], _version(self.node.raw)
        may_write = capacity is not None and contest.may_write(wanted, version)
        if may_write:
            await self.write("node", self._kube.patch(f"{path}/status", capacity or {}))
            contest.written(wanted, version)
        label = not self._parts.readiness.problems and not facts.isolates
        if label:
            await self.write("node", self._kube.patch(path, kube_objects.isolates()))
        return may_write or label

    async def write(self, what: str, work: Any) -> Json:
        """Await the write and count it. Return the object as the API server stored it."""
        try:
            stored: Json = await work
        except KubeError:
            self._parts.metrics.api_writes.labels(what, "failed").inc()
            raise
        self._parts.metrics.api_writes.labels(what, "written").inc()
        _LOG.info(Line("object written", object=what))
        return stored

    def _log(self, problem: str) -> None:
        if problem and problem != self._logged_problem:
            _LOG.warning(Line("GPU inventory not published", error=problem))
        self._logged_problem = problem


def _version(raw: Json) -> str:
    return str(raw.get("metadata", {}).get("resourceVersion", ""))


class One:
    """Receives one object from a watch. raw: the object, empty if it does not exist."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.raw: Json = {}
        self._changed = changed

    def observed(self, raw: Json) -> str:
        self.raw = raw
        self._changed.set()
        return str(raw["metadata"]["name"])

    def deleted(self, raw: Json) -> None:
        self.raw = {}
        self._changed.set()

    def listed(self, keys: set[str]) -> None:
        if not keys:
            self.deleted(self.raw)


class Contest:
    """Detects a contest: another program repeatedly overwrites the agent's fields of one object.
    now: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._taken_back: deque[float] = deque(maxlen=CONTEST_WRITES)
        self._wanted: object = None
        """The value of the last accepted write. None: no write, or one whose revert is counted."""
        self._version = ""
        self._paused_until = self._over_at = now()

    def may_write(self, wanted: object, version: str) -> bool:
        """Whether the caller may write `wanted`, from which the object differs. version: the
        object's resourceVersion."""
        now = self._now()
        if now < self._paused_until:
            return False
        if self._wanted == wanted and version != self._version:
            self._taken_back.append(now)
            self._wanted = None
            if self._over_at > now:
                self._over_at = now + CONTEST_S
        if len(self._taken_back) < CONTEST_WRITES or now - self._taken_back[0] > CONTEST_S:
            return True
        self._taken_back.clear()
        self._wanted = None
        self._paused_until, self._over_at = now + CONTEST_S, now + 2 * CONTEST_S
        return False

    def written(self, wanted: object, version: str) -> None:
        """Record an accepted write, with the arguments that may_write had."""
        self._wanted, self._version = wanted, version

    @property
    def lasts(self) -> bool:
        """Whether a contest was detected and may continue."""
        return self._now() < self._over_at


def other_writer(raw: Json) -> str:
    """Return the program that last wrote the agent's fields of the object, apart from the agent, as
    recorded in managedFields. "": no such program is recorded."""
    others = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in raw.get("metadata", {}).get("managedFields") or ()
        if entry.get("manager") != names.AGENT and _FIELDS.search(str(entry.get("fieldsV1")))
    ]
    return max(others)[1] if others else ""
