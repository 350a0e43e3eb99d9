"""Pods as users write them, their Bindings, and an object of every kind with a pod template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import KAI, VOLCANO

Json = dict[str, Any]

HALF: Final = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}


def container(name: str = "main", **more: Any) -> Json:
    return {"name": name, "image": "none", **more}


def asking(asked: dict[str, Any], name: str = "main", **more: Any) -> Json:
    return container(name, resources={"limits": asked, "requests": dict(asked)}, **more)


def pod(*containers: Json, scheduler: str = names.SCHEDULER_NAME, **metadata: Any) -> Json:
    inits = [each for each in containers if each.pop("init", False)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **metadata},
        "spec": {
            "schedulerName": scheduler,
            "containers": [each for each in containers if each not in inits] or [container()],
            "initContainers": inits,
        },
    }


def of_volcano(*containers: Json, **metadata: Any) -> Json:
    return pod(*containers, scheduler=VOLCANO.scheduler_name, **metadata)


def of_kai(annotations: Mapping[str, str], *containers: Json, whole: str = "") -> Json:
    """Return a pod of KAI's, by default with the init container `first` and the containers `main`
    and `second`. whole: name of the container that limits nvidia.com/gpu to 1."""

    def made(name: str, **more: Any) -> Json:
        limits = {"limits": {names.RESOURCE_NVIDIA_GPU: 1}} if name == whole else {}
        return container(name, resources=limits, **more)

    three = made("first", init=True), made("main"), made("second")
    return pod(*(containers or three), scheduler=KAI.scheduler_name, annotations=annotations)


def unnamed(*containers: Json, **metadata: Any) -> Json:
    """Return a pod as HAMi's users write it, without a schedulerName."""
    raw = pod(*containers, **metadata)
    del raw["spec"]["schedulerName"]
    return raw


def binding(name: str, node: str, annotations: Mapping[str, str] | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


_SELECTED: Final = {"app": "p"}


def _labelled(raw: Json) -> Json:
    metadata = raw["metadata"]
    labels = {**metadata.get("labels", {}), **_SELECTED}
    return {"metadata": {**metadata, "labels": labels}, "spec": raw["spec"]}


def _job(raw: Json) -> Json:
    template = _labelled(raw)
    return {"template": {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}}


def workloads(raw: Json) -> dict[str, tuple[str, Json]]:
    """Return the path of each kind's collection, and an object whose pods are like `raw`."""
    template, selector = _labelled(raw), {"matchLabels": _SELECTED}
    apps = {"selector": selector, "template": template}
    made = {
        "Deployment": ("apps/v1", apps),
        "ReplicaSet": ("apps/v1", apps),
        "DaemonSet": ("apps/v1", apps),
        "StatefulSet": ("apps/v1", {**apps, "serviceName": "p"}),
        "Job": ("batch/v1", _job(raw)),
        "CronJob": ("batch/v1", {"schedule": "@daily", "jobTemplate": {"spec": _job(raw)}}),
        "ReplicationController": ("v1", {"selector": _SELECTED, "template": template}),
        "PodTemplate": ("v1", {}),
    }
    return {
        kind: (
            f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/default/{kind.lower()}s",
            {
                **{"apiVersion": version, "kind": kind, "metadata": {"name": "w"}},
                **({"spec": spec} if spec else {"template": template}),
            },
        )
        for kind, (version, spec) in made.items()
    }
