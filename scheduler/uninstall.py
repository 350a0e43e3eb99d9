"""Removes from the cluster what gpuslice's components wrote into it; docs/install.md has the order.

It deletes no user's pod, no object that another program wrote, and not the definition of Device.
Each step may be repeated. After an error, run the command again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from gpuslice.contract import names
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import KubeError
from gpuslice.kube.fields import Json, at, objects
from scheduler.kubernetes import removal
from scheduler.kubernetes.facts import some_of

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_POLICIES: Final = (
    f"{_ADMISSION}/mutatingadmissionpolicybindings",
    f"{_ADMISSION}/mutatingadmissionpolicies",
    f"{_ADMISSION}/validatingadmissionpolicybindings",
    f"{_ADMISSION}/validatingadmissionpolicies",
)
_CLAIMS: Final = f"/apis/{names.DRA_API_VERSION}"
_NODES: Final = "/api/v1/nodes"
_DEVICES: Final = f"/apis/{names.DEVICE_API_VERSION}/{names.DEVICE_PLURAL}"
_OURS: Final = f"{names.LABEL_PART_OF}={names.PART_OF}"
_COMPONENTS: Final = (
    f"{names.LABEL_NAME} in ({names.AGENT},{names.DISTRIBUTOR},{names.SCHEDULER_NAME},"
    f"{names.CLAIM_TEMPLATES})"
)
_CLEANING: Final = f"{names.LABEL_NAME}={names.UNINSTALLER}"
_KEPT_POLICY: Final = "gpuslice-writer"
"""A policy that must stay; its manifest says why."""
_POLL_S: Final = 1.0
_TRIES: Final = 5
_SHOWN: Final = 20
_LOG_LINES: Final = 100


class UninstallError(RuntimeError):
    """A step could not be completed. The text has the reason and the next command."""


class Uninstallation:
    """An uninstallation. print_line: called with one line for each changed object. timeout_s: how
    long to wait until the components' pods have ended."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        dry_run: bool,
        timeout_s: float,
        print_line: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._apps = f"/apis/apps/v1/namespaces/{namespace}"
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._dry_run = dry_run
        self._timeout_s = timeout_s
        self._print_line = print_line
        self._stays: list[str] = []

    async def run(self) -> None:
        """Remove what the components wrote. Raise KubeError, UninstallError."""
        claims = await self._list(f"{_CLAIMS}/resourceclaims")
        if pods := sorted({pod for claim in claims for pod in removal.reserved_for(claim)}):
            raise UninstallError(
                f"pods have claims of GPUs: {some_of(pods, _SHOWN)}: must have ended, as the"
                " kubelet cannot end them without the agent; delete them and run this command again"
            )
        for path in _POLICIES:
            for each in await self._list(path, _OURS):
                if _name(each) != _KEPT_POLICY:
                    await self._delete(path, each)
        await self._stop()
        for node in await self._list(_NODES):
            await self._clean(node)
        for device in await self._list(_DEVICES):
            await self._clear(device)
        for each in await self._list(f"{_CLAIMS}/resourceclaimtemplates", _OURS):
            namespace = at(each, "metadata")["namespace"]
            path = f"{_CLAIMS}/namespaces/{namespace}/resourceclaimtemplates"
            await self._delete(path, each)
        for lease in await self._list(self._leases):
            is_agents = _name(lease).startswith(names.LEASE_AGENT_PREFIX)
            if is_agents or _name(lease) == names.LEASE_KUBE_SCHEDULER:
                await self._delete(self._leases, lease)
        await self._report()

    async def nodes(self) -> None:
        """Wait for the DaemonSet that cleans the nodes, print its pods' logs, and delete it. A node
        whose pod is not ready in time is reported. Raise KubeError."""
        path, until_s = f"{self._apps}/daemonsets", time.monotonic() + self._timeout_s
        while not all(map(_complete, daemon_sets := await self._list(path, _CLEANING))):
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(_POLL_S)
        for pod in await self._list(self._pods, _CLEANING):
            if not _is_ready(pod):
                self._print_line(f"node/{_node(pod)}: not reached: its files stay")
                continue
            text = await self._kube.text(f"{self._pods}/{_name(pod)}/log", tailLines=_LOG_LINES)
            for line in text.splitlines():
                self._print_line(f"node/{_node(pod)}: {line}")
        for each in daemon_sets:
            await self._delete(path, each)

    # --- steps

    async def _stop(self) -> None:
        """Delete the components, and return when their pods have ended."""
        for path in (f"{self._apps}/daemonsets", f"{self._apps}/deployments"):
            for each in await self._list(path, _COMPONENTS):
                await self._delete(path, each, "Foreground")
        if self._dry_run:
            return
        until_s = time.monotonic() + self._timeout_s
        while True:
            nodes = await self._list(_NODES)
            lost = {_name(node) for node in nodes if not _is_ready(node, unknown=True)}
            pods = await self._list(self._pods, _COMPONENTS)
            running = [pod for pod in pods if _node(pod) not in lost]
            if not running:
                break
            if time.monotonic() > until_s:
                places = some_of([f"{_name(pod)} on node {_node(pod)}" for pod in running], _SHOWN)
                raise UninstallError(
                    f"pods still run after {self._timeout_s:.0f} s: {places}: must have ended, as"
                    " they write again what is removed; run this command again"
                )
            await asyncio.sleep(_POLL_S)
        self._stays += [
            f"pod {_key(pod)}: its node {_node(pod)} is not ready; when it is back, the agent may"
            " write its totals again: then run this command again"
            for pod in pods
        ]

    async def _clean(self, node: Json) -> None:
        path = f"{_NODES}/{_name(node)}"
        await self._patch(node, path, "/status", removal.status_patch)
        await self._patch(node, path, "", removal.metadata_patch)
        if kept := removal.kept(node):
            self._stays.append(f"node/{_name(node)}: {', '.join(kept)}: no agent wrote it")

    async def _clear(self, device: Json) -> None:
        path = f"{_DEVICES}/{_name(device)}"
        if not removal.is_agents(device):
            self._stays.append(f"device/{_name(device)}: another program than the agent wrote it")
        elif removal.device_patch(device) is None:
            await self._delete(_DEVICES, device)
        else:
            await self._patch(device, path, "", removal.device_patch)

    async def _report(self) -> None:
        for pod in await self._list("/api/v1/pods"):
            if removal.has_share(pod):
                self._stays.append(
                    f"pod {_key(pod)} on node {_node(pod)}: it has a share of a GPU, and keeps its"
                    " limit until it ends"
                )
        self._stays += [
            f"customresourcedefinition/{names.DEVICE_PLURAL}"
            f".{names.DEVICE_API_VERSION.partition('/')[0]}: Koordinator uses it too",
            f"validatingadmissionpolicy/{_KEPT_POLICY}, which affects no request: the API server"
            " would not read the Lease for a later installation",
            f"on each node {names.HOST_RUN_DIR} and {names.HOST_LIBRARY}, until `python -m"
            " nri_plugin uninstall` ran there",
        ]
        for line in self._stays:
            self._print_line(f"stays: {line}")

    # --- requests

    async def _list(self, path: str, selector: str = "") -> Sequence[Json]:
        """Return all objects at the path, or none if the API server does not know their kind."""
        listed: list[Json] = []
        try:
            async for items, _ in self._kube.list(path, labelSelector=selector):
                listed += items
        except KubeError as error:
            if error.status != 404:
                raise
        return listed

    async def _delete(self, path: str, raw: Json, policy: str = "Background") -> None:
        self._done(f"{_kind(path)}/{_name(raw)}", "deleted")
        if self._dry_run:
            return
        try:
            await self._kube.delete(f"{path}/{_name(raw)}", removal.deletion(raw, policy))
        except KubeError as error:
            # 409: the listed object is gone, and a new one has its name. The new one stays.
            if error.status not in (404, 409):
                raise

    async def _patch(
        self, raw: Json, path: str, part: str, change: Callable[[Json], Json | None]
    ) -> None:
        """Patch the object. If it changed since it was read, read it again and repeat."""
        what = f"{_kind(path.rpartition('/')[0])}/{_name(raw)}"
        for _ in range(_TRIES):
            patch = change(raw)
            if patch is None:
                return
            removed = sorted({key for keys in _parts(patch) for key in keys})
            if self._dry_run:
                self._done(what, f"{', '.join(removed)} removed")
                return
            try:
                await self._kube.patch(f"{path}{part}", patch)
            except KubeError as error:
                if error.status == 404:
                    return
                if error.status != 409:
                    raise
                raw = await self._kube.get(path)
                continue
            self._done(what, f"{', '.join(removed)} removed")
            return
        raise UninstallError(f"{what}: changes faster than it can be written: run this again")

    def _done(self, what: str, done: str) -> None:
        self._print_line(f"{what}: {done}{' (dry run)' if self._dry_run else ''}")


def _parts(patch: Json) -> Sequence[Json]:
    """Return the objects in the patch whose keys it removes: for a Device, the key of its GPUs."""
    values = [*at(patch, "status").values(), *at(patch, "metadata").values()]
    parts = [each for each in values if isinstance(each, dict)]
    return parts or [{names.DEVICE_TYPE_GPU: None}]


def _name(raw: Json) -> str:
    return str(at(raw, "metadata").get("name", ""))


def _key(pod: Json) -> str:
    return f"{at(pod, 'metadata').get('namespace')}/{_name(pod)}"


def _node(pod: Json) -> str:
    return str(at(pod, "spec").get("nodeName", ""))


def _complete(daemon_set: Json) -> bool:
    """Return whether the DaemonSet's pod is ready on each node."""
    status, metadata = at(daemon_set, "status"), at(daemon_set, "metadata")
    is_current = status.get("observedGeneration") == metadata.get("generation")
    return is_current and status.get("numberReady") == status.get("desiredNumberScheduled")


def _is_ready(raw: Json, unknown: bool = False) -> bool:
    """Return whether a pod or a node is ready. unknown: the result if its status does not say."""
    conditions = objects(at(raw, "status"), "conditions")
    ready = [each.get("status") == "True" for each in conditions if each.get("type") == "Ready"]
    return ready[0] if ready else unknown


def _kind(path: str) -> str:
    """Return the singular of the resource in the path, as kubectl prints it."""
    plural = path.rpartition("/")[2]
    return plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")
