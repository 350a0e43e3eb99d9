"""The node agent's API server client, running in a thread, with the manifests' rights.

Its GPUs are a simulated host's, read by NVML; the test sets its readiness and the containers'
holdings.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    """kubeconfig: the account that it uses at the API server."""

    def __init__(
        self,
        node: str,
        kubeconfig: Path,
        environment: dict[str, str],
    ) -> None:
        self.settings = Settings(
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
        self.bounds = BoundPods()
        self.notices = Notices()
        self.ledger = Ledger()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="agent's side")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop as the agent does on SIGTERM. It may be called twice."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    async def _run(self) -> None:
        inventory = Inventory(
            self.settings.environment, deadline_s=60, min_interval_s=0.5, now=time.monotonic
        )
        agent = Parts(
            self.settings,
            inventory,
            Contexts(self.settings.environment, inventory),
            RunDirectory(NOWHERE, lambda: 7),
            Store(NOWHERE, NOWHERE),
            self.metrics,
            self.bounds,
            self.notices,
            ledger=self.ledger,
            readiness=self.readiness,
        )
        side = Cluster(agent, GpuModes())
        self._task = asyncio.current_task()  # type: ignore[assignment]
        beating = asyncio.create_task(self._beat())
        try:
            await side.run()
        finally:
            beating.cancel()
            await inventory.close()

    async def _beat(self) -> None:
        while True:
            self.readiness.beat()
            await asyncio.sleep(0.5)

    _task: asyncio.Task[None]


@contextmanager
def serving(
    node: str,
    kubeconfig: Path,
    environment: dict[str, str],
) -> Iterator[Side]:
    side = Side(node, kubeconfig, environment)
    side.start()
    try:
        yield side
    finally:
        side.stop()
