"""The controller of queues beside an API server that the test fills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpuslice.contract import names
from scheduler.events import Events
from scheduler.metrics import Metrics
from scheduler.queues import figures, kueue
from scheduler.queues.controller import Queues
from tests.kube.api_server import client_of
from tests.queues.api import Api, Json
from tests.queues.kai import Q

KUEUE = kueue.API
QUEUES = "/apis/scheduling.run.ai/v2/queues"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.scheduling.run.ai"
SIZES = "/api/v1/namespaces/gpuslice-system/configmaps/gpuslice-gpu-sizes"
LOCAL = f"{KUEUE}/namespaces/team/localqueues"
EVENTS = "/apis/events.k8s.io/v1/"
GPU = 40 << 30


class Scene:
    """The controller beside an API server. Time passes only by `now_s`."""

    def __init__(self) -> None:
        self.api, self.metrics = Api(), Metrics()
        self.leads, self.gpus, self.now_s = True, 4, 0.0
        self.api.put(
            CRD, {"metadata": {"name": "crd", "labels": {"app.kubernetes.io/part-of": "gpuslice"}}}
        )
        self.api.put("/api/v1/namespaces/team", {"metadata": {"name": "team"}})
        self.api.put(SIZES, {"metadata": {"name": names.CONFIG_GPU_SIZES}})
        for queue in (Q("default", -1), Q("test", -1, parent="default")):
            self.queue(queue)

    def queue(self, queue: Q) -> None:
        self.api.put(f"{QUEUES}/{queue.name}", queue.raw())

    def pod(
        self, name: str, queue: str = "test", gated: bool = True, namespace: str = "team"
    ) -> None:
        labels = {names.LABEL_KUEUE_QUEUE: queue, names.LABEL_KAI_QUEUE: queue}
        requests = {names.RESOURCE_MILLI: "300"}
        spec: Json = {"containers": [{"resources": {"requests": requests}}]}
        if gated:
            spec["schedulingGates"] = [{"name": figures.GATE}]
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        self.api.put(
            f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": metadata, "spec": spec}
        )
        admitted = {
            "conditions": [{"type": "Admitted", "status": "True"}],
            "admission": {
                "clusterQueue": queue,
                "podSetAssignments": [{"count": 1, "resourceUsage": requests}],
            },
        }
        self.api.put(
            f"{KUEUE}/namespaces/{namespace}/workloads/{name}",
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"queueName": queue, "podSets": [{"count": 1, "template": {"spec": spec}}]},
                "status": {} if gated else admitted,
            },
        )

    def there(self, path: str) -> Json | None:
        return self.api.objects.get(path)

    def ready(self, queue: str) -> Json:
        conditions = self.api.objects[f"{QUEUES}/{queue}"].get("status", {}).get("conditions", ())
        return next((dict(each) for each in conditions if each["type"] == "Ready"), {})

    def amount(self, key: str) -> str:
        found = self.api.objects[f"{QUEUES}/test"].get("status", {})
        return str(found.get(key, {}).get("nvidia.com/gpu"))

    def notes(self) -> list[str]:
        return [raw["note"] for path, raw in self.api.objects.items() if path.startswith(EVENTS)]

    def nominal(self, path: str) -> str | None:
        if (raw := self.there(path)) is None:
            return None
        (resource,) = raw["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
        return str(resource["nominalQuota"])

    def leaf(self, name: str) -> tuple[str, str, str]:
        """Return the ClusterQueue's stopPolicy, Cohort and quota."""
        raw = self.there(path := f"{KUEUE}/clusterqueues/{name}")
        spec = raw["spec"] if raw else {}
        return spec.get("stopPolicy", ""), spec.get("cohortName", ""), str(self.nominal(path))

    def gauge(self, name: str, state: str) -> float | None:
        labels = {"queue": "test", "state": state}
        return self.metrics.registry.get_sample_value(f"gpuslice_scheduler_queue_{name}", labels)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Scene]:
        async with client_of(self.api.answer) as kube:
            clock: Callable[[], float] = lambda: self.now_s  # noqa: E731
            events = Events(kube.post, self.metrics, clock, "me")
            queues = Queues(
                kube, lambda: self.leads, lambda: [GPU] * self.gpus, events, self.metrics, clock
            )
            task = asyncio.create_task(queues.run())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.wait({task})

    async def looked(self) -> None:
        """Wait for a few looks of the controller, which must not change anything."""
        await asyncio.sleep(0.2)
