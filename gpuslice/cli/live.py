"""Reads the cluster and the live use of its GPUs, with the user's rights only.

Grants come from one list each of Devices, pods, ResourceSlices and ResourceClaims. Use comes from
the metrics of the agents of the shown nodes, through pods/portforward, at most _AT_ONCE at the same
time. What the user may not read is left out, and `notices` names the missing right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuslice.cli import cluster
from gpuslice.cli.cluster import Cluster, Node
from gpuslice.cli.first_lists import CACHED, CLAIMS, DEVICES, LIVE_PODS, OUR_SLICES, PODS, SLICES
from gpuslice.cli.use import Sample, parse
from gpuslice.contract import names
from gpuslice.kube import port_forward
from gpuslice.kube.client import Kube
from gpuslice.kube.errors import FORBIDDEN, NOT_FOUND, KubeError
from gpuslice.kube.fields import Json

_AT_ONCE: Final = 50
_TIMEOUT_S: Final = 8.0
_GRANTS_S: Final = 10.0
"""Interval between two lists of the pods. Use is read more often, and costs the API server less."""


@dataclass
class Reader:
    """Reads for one display. namespace: "" for all. known: what was read just now."""

    kube: Kube
    namespace: str = ""
    known: Cluster | None = None
    clock: Callable[[], float] = time.monotonic
    notices: dict[str, str] = field(default_factory=dict)
    """What is not shown, with the missing right or the reason, by what it is about."""
    _samples: dict[str, Sample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._listed_s = self.clock()

    async def grants(self) -> Cluster:
        """Return the nodes and waiting pods, read again after _GRANTS_S. Raises KubeError."""
        if self.known is None or self.clock() - self._listed_s >= _GRANTS_S:
            lists = await asyncio.gather(self._list(DEVICES), self._pods())
            claims = await self._claims()
            self.known = cluster.read(*lists, *claims, namespace=self.namespace)
            self._listed_s = self.clock()
        return self.known

    async def use(self, nodes: Iterable[Node]) -> bool:
        """Read the nodes' use from their agents. Return whether any of them answers."""
        asked = [*nodes]
        for node in asked:
            node.show(None)

        def show(node: Node, page: bytes) -> None:
            sample = parse(page, self.clock())
            node.show(sample.since(self._samples.get(node.name)))
            self._samples[node.name] = sample

        self.notices.pop("agents", None)
        silent = await self.pages(asked, show)
        if silent and "use" not in self.notices:
            more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
            first = min(f"{name}: {why}" for name, why in silent.items())
            self.notices["agents"] = f"the use of some nodes is not known: {first}{more}"
        return len(silent) < len(asked)

    async def pages(
        self, nodes: Iterable[Node], take: Callable[[Node, bytes], None]
    ) -> Mapping[str, str]:
        """Give the metrics of each node's agent to `take`, which may raise ValueError. Return why
        nodes did not answer, by name. If the user may not ask the agents, `notices` says so, and
        no further one is asked."""
        limit, silent = asyncio.Semaphore(_AT_ONCE), dict[str, str]()

        async def ask(node: Node) -> None:
            async with limit:
                try:
                    if "use" in self.notices:
                        raise ValueError(self.notices["use"])
                    if node.agent is None:
                        raise ValueError("no agent runs there")
                    where = (names.NAMESPACE, *node.agent, "/metrics", _TIMEOUT_S)
                    take(node, await port_forward.get(self.kube, *where))
                except (KubeError, ValueError) as error:
                    silent[node.name] = str(error)
                    if getattr(error, "status", 0) == FORBIDDEN:
                        missing = _missing("pods/portforward", "get, create")
                        self.notices["use"] = silent[node.name] = missing

        self.notices.pop("use", None)
        await asyncio.gather(*map(ask, nodes))
        return silent

    async def rates(self, nodes: Sequence[Node], pause_s: float) -> None:
        """Read the nodes' use twice, because a rate needs two samples."""
        if await self.use(nodes):
            await asyncio.sleep(pause_s)
            await self.use(nodes)

    async def _pods(self) -> Sequence[Json]:
        """Return all pods; only the namespace's and the agents' if the user may not list others."""
        try:
            return await self._list(PODS, fieldSelector=LIVE_PODS)
        except KubeError as error:
            if error.status != FORBIDDEN or not self.namespace:
                raise
        self.notices["pods"] = (
            f"granted amounts count pods of {self.namespace} only: no right to list pods of all"
            f" namespaces (ClusterRole {names.VIEWER})"
        )
        own, agents = (f"/api/v1/namespaces/{e}/pods" for e in (self.namespace, names.NAMESPACE))
        pods = await self._list(own, fieldSelector=LIVE_PODS)
        try:
            labels = f"{names.LABEL_NAME}={names.AGENT}"
            return [*pods, *await self._list(agents, labelSelector=labels)]
        except KubeError as error:
            if error.status != FORBIDDEN:
                raise
            self.notices["use"] = _missing("pods", "list")
            return pods

    async def _claims(self) -> tuple[Sequence[Json], Sequence[Json]]:
        """Return the ResourceSlices and ResourceClaims; none if the user may not list them."""
        self.notices.pop("claims", None)
        try:
            slices = await self._list(SLICES, fieldSelector=OUR_SLICES)
            return slices, await self._list(CLAIMS)
        except KubeError as error:
            if error.status != FORBIDDEN:
                raise
        needs = "list resourceslices, resourceclaims"
        self.notices["claims"] = f"no nodes of claims: needs {needs} ({names.VIEWER})"
        return (), ()

    async def _list(self, path: str, **query: str) -> Sequence[Json]:
        """Return the objects; none if the API server does not have their kind."""
        read = self.kube.list(path, page=0, resourceVersion=CACHED, **query)
        try:
            return [item async for items, _ in read for item in items]
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            return ()


def _missing(resource: str, verbs: str) -> str:
    """Return the notice. It fits 80 columns."""
    return f"no use: needs {verbs} {resource} in {names.NAMESPACE} ({names.VIEWER})"
