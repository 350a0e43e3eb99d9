"""Runs the node's side of Dynamic Resource Allocation, and changes the node's front end.

While the front end is, or shall be, `claims`, the kubelet's plugin is served. The ResourceSlice is
published while it is and shall be, and the kubelet has accepted the plugin. A starting kubelet
deletes the slice. The watch reports that, and the slice is published again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json
from gpuslice.kube.log_lines import Line
from gpuslice.kube.reflector import UNLISTED, Reflector
from nri_plugin.claims import slices
from nri_plugin.claims.preparing import Preparing
from nri_plugin.claims.store import store_of
from nri_plugin.containers.parts import Parts
from nri_plugin.kube.inventory_publisher import InventoryPublisher, One
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.model import Pod
from nri_plugin.policy.notices import Notice

_LOG: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.5
_NAMED_MAX: Final = 4
_NEEDS: Final = "claims need Kubernetes 1.36, and the rights that the chart gives the agent there"


class ClaimsDriver:
    """publisher: has the Node, and what the annotations' front end shows. listed: returns whether
    the publisher's objects have been listed."""

    def __init__(
        self, kube: Kube, parts: Parts, publisher: InventoryPublisher, listed: Callable[[], bool]
    ) -> None:
        self._kube = kube
        self._parts = parts
        self._front_ends = parts.claims
        self._node_name = parts.settings.node_name
        self._publisher, self._listed = publisher, listed
        self._store = store_of(parts.settings)
        self._slice = One(asyncio.Event())
        self._logged: dict[str, object] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if self._is_on:
                await self._serve()
            self._parts.readiness.front_end = ()
            await asyncio.sleep(_TICK_S)

    @property
    def _is_on(self) -> bool:
        return FrontEnd.CLAIMS in (self._front_ends.now, self._front_ends.wanted)

    async def _serve(self) -> None:
        from nri_plugin.claims.plugin import KubeletPlugin  # loads grpcio

        settings = self._parts.settings
        preparing = Preparing(self._parts, self._store, self._kube)
        plugin = KubeletPlugin(preparing, settings.kubelet_dir, settings.on_host)
        ours = f"spec.nodeName={self._node_name},spec.driver={names.DRA_DRIVER}"
        query = {"fieldSelector": ours}
        reflector = Reflector(self._kube, slices.PATH, self._slice, query=query)
        tasks = [asyncio.create_task(each) for each in (reflector.run(), preparing.run())]
        try:
            async with plugin.serving():
                while self._is_on:
                    await self._round(plugin.registered, reflector)
                    await asyncio.sleep(_TICK_S)
        finally:
            for task in tasks:
                task.cancel()

    async def _round(self, registered: bool, reflector: Reflector) -> None:
        """Write the slice if it differs, and change the front end if it may change."""
        front_ends, desired = self._front_ends, None
        synced = reflector.synced
        current = front_ends.now is front_ends.wanted is FrontEnd.CLAIMS
        if current and registered and self._publisher.node_uid and self._publisher.listed:
            desired = self._desired()
        if synced and (current is (desired is not None)):
            await self._write(desired)
        holders = self._holders()
        is_free = not holders and self._parts.knows_pods and self._parts.ledger.is_complete
        gone = synced and not self._slice.raw and self._listed() and self._publisher.withdrawn
        if front_ends.settle(is_free and gone, asyncio.get_running_loop().time()):
            change = self._store.begin if front_ends.now is FrontEnd.CLAIMS else self._store.end
            await asyncio.to_thread(change)
            _LOG.info(Line("front end changed", front_end=front_ends.now))
        self._report(holders, reflector.problem)

    def _desired(self) -> Json:
        parts, entries = self._parts, self._publisher.listed
        for entry in entries:
            self._log(entry.gpu.uuid, "GPU not in the node's slice", slices.left_out(entry))
        ready = not (parts.readiness.problems or parts.readiness.claims)
        used = self._front_ends.devices.used()
        return slices.resource_slice(
            self._node_name, self._publisher.node_uid, entries, used, ready
        )

    async def _write(self, desired: Json | None) -> None:
        """Make the slice as desired. None: delete it. The next round repeats a failed write."""
        raw, path = self._slice.raw, f"{slices.PATH}/{slices.name(self._node_name)}"
        work: Awaitable[Json] | None = None
        if desired is None:
            work = self._kube.delete(path) if raw else None
        elif not raw:
            work = self._kube.post(slices.PATH, desired)
        elif slices.differs(raw, desired):
            work = self._kube.patch(path, desired)
        problem = ""
        try:
            if work is not None:
                await self._publisher.write("slice", work)
        except KubeError as error:
            problem = str(error)
        self._log("slice", "ResourceSlice not published", problem)

    def _log(self, what: str, text: str, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._logged.get(what):
            _LOG.warning(Line(text, object=what, problem=problem))
        self._logged[what] = problem

    def _holders(self) -> Sequence[str]:
        """Return what holds, or was granted, a part of one of the node's GPUs."""
        bound = self._parts.bound_pods
        # Without the plugin the kubelet can neither start nor end these.
        waiting = bound.awaiting_claims() if self._front_ends.now is FrontEnd.CLAIMS else ()
        return [
            *(f"pod {bound.name(uid)}" for uid in waiting),
            *(f"claim {c.namespace}/{c.name}" for c in self._front_ends.devices.prepared.values()),
            *dict.fromkeys(f"container {h.container_key}" for h in self._parts.ledger.holds()),
            *(f"pod {bound.name(uid)}" for uid, gpus in bound.allocated().items() if gpus),
        ]

    def _report(self, holders: Sequence[str], problem: str) -> None:
        """Say what a change of the front end waits for: in the readiness, and once in an event.
        problem: why the slice cannot be listed."""
        readiness, leaves = self._parts.readiness, self._front_ends.leaves
        shown, more = ", ".join(holders[:_NAMED_MAX]), len(holders) - _NAMED_MAX
        text = f"{leaves}; it waits until nothing holds its GPUs: {shown}"
        text += f" and {more} more" if more > 0 else ""
        notes = [text if holders else leaves] if leaves else []
        if problem not in ("", UNLISTED):
            notes.append(f"resourceslices: {problem}; {_NEEDS}")
        readiness.front_end = notes
        waits = bool(leaves and holders)
        if waits and not self._logged.get("front end"):
            since, no_pod = datetime.now(UTC).isoformat(), Pod("", names.NAMESPACE, "")
            reason = names.EVENT_FRONT_END_WAITS
            notice = Notice(no_pod, since, reason, text, of_node=True, action="Move")
            self._parts.notices.add(notice)
            _LOG.warning(Line("front end waits", problem=text))
        self._logged["front end"] = waits
