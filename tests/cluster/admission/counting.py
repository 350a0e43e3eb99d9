"""What a share counts in a queue: as the chart's policies write it, and as the readers read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import floor
from typing import Final

from gpuslice.contract import names
from lab.cluster import manifests
from lab.cluster.controlplane import ControlPlane
from scheduler.core.request import ContainerRequest
from scheduler.kubernetes import requests
from tests.cluster.admission.judging import ALL_ON, DRY, PODS, policies
from tests.cluster.server import Answer, Json, Server
from tests.requests.pods import asking, pod
from tests.support import until

QUEUES: Final = "--set=queues.enabled=true"
SIZES: Final = (23040, 40960, 81559)
"""MiB of the GPU models, ascending."""
NAMESPACE: Final = "counted"
"""A namespace with the label."""
_SIZES_PATH: Final = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{names.CONFIG_GPU_SIZES}"
_MIB: Final = 1 << 20
_PROBE: Final = pod(asking({names.RESOURCE_MEMORY: "1Gi"}))
"""A pod whose count depends on the sizes."""

Counts = Mapping[str, str]
"""The thousandths of a GPU of each container with a share."""


def counted(raw: Json, sizes: Sequence[int] = SIZES) -> Counts:
    """Return the right counts. Raise RequestError if the scheduler refuses the pod."""
    request = requests.request(raw, ALL_ON)
    containers = [] if request is None else request.containers
    return {asked.name: _quantity(_count(asked, sizes)) for asked in containers}


def _count(asked: ContainerRequest, sizes: Sequence[int]) -> int:
    if asked.memory_bytes is None:
        assert asked.memory_ratio is not None
        memory = floor(float(asked.memory_ratio) * 1000.0 + 0.5)
    else:
        fitting = [size * _MIB for size in sizes if size * _MIB >= asked.memory_bytes]
        memory = -(-1000 * asked.memory_bytes // fitting[0]) if fitting else 1000
    return asked.gpus * max(memory, 10 * (asked.core_percent or 0))


def _quantity(count: int) -> str:
    """Return the count as the API server prints it."""
    return f"{count // 1000}k" if count and count % 1000 == 0 else str(count)


def counting(server: Server, raw: Json, collection: str = PODS) -> Answer:
    """Return the answer to a trial creation in the namespace with the label."""
    return server.ask("POST", collection.replace("/default/", f"/{NAMESPACE}/") + DRY, raw)


def written(answer: Answer) -> Counts:
    """Return the counts in an admitted pod or Job. Requests must equal limits."""
    assert answer.done, answer.text
    spec = answer.body["spec"]
    spec = spec["template"]["spec"] if answer.body["kind"] == "Job" else spec
    found = {}
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        limits, given = (each["resources"].get(kind, {}) for kind in ("limits", "requests"))
        assert limits.get(names.RESOURCE_MILLI) == given.get(names.RESOURCE_MILLI)
        if names.RESOURCE_MILLI in limits:
            found[each["name"]] = limits[names.RESOURCE_MILLI]
    return found


def with_counts(raw: Json, counts: Counts) -> Json:
    """Return the pod as its author writes it where no policy does."""
    changed: Json = {**raw, "spec": {**raw["spec"]}}
    for kind in ("initContainers", "containers"):
        changed["spec"][kind] = [
            {**each, "resources": _added(each.get("resources", {}), counts[each["name"]])}
            if each["name"] in counts
            else each
            for each in raw["spec"][kind]
        ]
    return changed


def _added(resources: Json, count: str) -> Json:
    return {
        **resources,
        **{
            kind: {**resources.get(kind, {}), names.RESOURCE_MILLI: count}
            for kind in ("limits", "requests")
        },
    }


def set_sizes(server: Server, text: str, count: str) -> None:
    """Set the ConfigMap's sizes, and wait until _PROBE counts so much. The API server reads them
    once for each kind of policy."""
    assert server.patch(_SIZES_PATH, {"data": {names.CONFIG_KEY_MIB: text}}).done

    def is_read() -> bool:
        answer = counting(server, _PROBE)
        if answer.done:
            return written(answer) == {"main": count}
        return answer.text.startswith(f"{missing('main', count)}, as ")

    until(is_read, f"a pod counts {count} with the sizes {text!r}")


def missing(container: str, count: str) -> str:
    """Return the text that refuses a container without its count."""
    return f"container {container}: resources.limits[{names.RESOURCE_MILLI}]: must be {count}"


@contextmanager
def queues(control: ControlPlane, server: Server, *options: str) -> Iterator[None]:
    """Turn queues on. options: those of policies that are in force already."""
    usual = {each["metadata"]["name"] for each in policies(*options)}
    made = manifests.serving([names.SCHEDULER_NAME], QUEUES, *options)
    # The scheduler may change a binding only if it may read the sizes.
    kinds = ("ConfigMap", "Role", "RoleBinding")
    read = [
        each
        for each in made
        if each["kind"] in kinds
        and each["metadata"]["name"] in (names.CONFIG_GPU_SIZES, "gpuslice-queues")
    ]
    ours = [each for each in policies(QUEUES, *options) if each["metadata"]["name"] not in usual]
    control.apply_json(*read, *_acting(ours, {}))
    labels = {names.LABEL_QUEUES: "true"}
    server.make("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    yield
    # Without a last binding the API server would no longer read the sizes.
    control.apply_json(*_acting(ours, {"namespaceSelector": {"matchLabels": {"is": "nowhere"}}}))
    control.remove_namespace(NAMESPACE)


def _acting(ours: Sequence[Json], matched: Json) -> Iterator[Json]:
    for each in ours:
        spec = each["spec"]
        is_binding = each["kind"].endswith("Binding")
        yield {**each, "spec": {**spec, "matchResources": matched} if is_binding else spec}
