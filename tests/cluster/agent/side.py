"""The node agent's API server client, in a thread, with the rights that the manifests grant.

It reads a simulated host's GPUs through NVML. The test sets its readiness and the containers'
holds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nri_plugin.containers.parts import Parts
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.kube.cluster import Cluster
from nri_plugin.metrics import Metrics
from nri_plugin.policy.bound_pods import BoundPods
from nri_plugin.policy.gpu_modes import GpuModes
from nri_plugin.policy.ledger import Ledger
from nri_plugin.policy.notices import Notices
from nri_plugin.readiness import Readiness
from nri_plugin.settings import Settings

NOWHERE = Path("/nonexistent")


class Side:
    """The agent's client. kubeconfig: the account with which it calls the API server."""

    def __init__(self, node: str, kubeconfig: Path, environment: dict[str, str]) -> None:
        self._settings = Settings(
            nri_socket=NOWHERE,
            index="50",
            run_dir=NOWHERE,
            library=NOWHERE,
            cdi_dirs=(),
            containerd_state=NOWHERE,
            environment={**os.environ, **environment},
            kubeconfig=str(kubeconfig),
            node_name=node,
            inventory_interval_s=0.5,
            inventory_interval_most_s=0.5,
        )
        self.metrics = Metrics()
        self.readiness = Readiness(time.monotonic)
        self.readiness.session, self.readiness.node = None, ()
        self.bounds, self.notices, self.ledger = BoundPods(), Notices(), Ledger()
        self._runner = asyncio.Runner()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._work, name="agent's side")
        self._thread.start()

    def stop(self) -> None:
        """Stop as the agent does on SIGTERM. It may be called twice."""
        if not self._thread.is_alive():
            return
        assert self._task is not None
        self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        with self._runner as runner, suppress(asyncio.CancelledError):
            runner.run(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        environment = self._settings.environment
        inventory = Inventory(environment, deadline_s=60, min_interval_s=0.5, now=time.monotonic)
        agent = Parts(
            self._settings,
            inventory,
            Contexts(environment, inventory),
            RunDirectory(NOWHERE, lambda: 7),
            Store(NOWHERE, NOWHERE),
            self.metrics,
            self.bounds,
            self.notices,
            ledger=self.ledger,
            readiness=self.readiness,
        )
        beating = asyncio.create_task(self._beat())
        try:
            await Cluster(agent, GpuModes()).run()
        finally:
            beating.cancel()
            await inventory.close()

    async def _beat(self) -> None:
        while True:
            self.readiness.beat()
            await asyncio.sleep(0.5)


@contextmanager
def serving(node: str, kubeconfig: Path, environment: dict[str, str]) -> Iterator[Side]:
    side = Side(node, kubeconfig, environment)
    try:
        yield side
    finally:
        side.stop()
