"""Valid and invalid pods that request shares, and every kind with a pod template."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import VOLCANO

Json = dict[str, Any]

HALF: Final = {names.RESOURCE_CORE: 50, names.RESOURCE_MEMORY_RATIO: 50}
_OLD: Final = {new: old for old, new in names.DEPRECATED_RESOURCES.items()}
_PERCENTS: Final = (0, 1, 50, 99, 100, 101, 150, 200, 300, 1600, 1700, 2000)
_BYTES: Final = (
    *("0", "1", "2", "8Gi", "160G", "1.5Gi", "16Ti", "100Ti", "256Ti", "300Ti", "2Pi", "4Pi"),
    *("281474976710656", "281474976710657", "4503599627370497", "5Pi", "1Ei"),
    "9223372036854775807",
)
_GPUS: Final = (0, 1, 2, 3, 4, 16, 17, "1k")
_FRACTIONS: Final = ("500m", "1500m", "0.1", "99.5", "100500m", "1e2")
"""The API server accepts these only under the old names."""
_FOREIGN: Final = (*names.RESOURCES_WHOLE, *names.RESOURCES_KOORDINATOR_ONLY)
_ASKED: Final[dict[str, tuple[object, ...]]] = {
    names.RESOURCE_GPU: _PERCENTS,
    names.RESOURCE_CORE: _PERCENTS,
    names.RESOURCE_MEMORY_RATIO: _PERCENTS,
    names.RESOURCE_MEMORY: _BYTES,
    names.RESOURCE_SHARED: _GPUS,
}
_OTHERS: Final[dict[str, tuple[object, ...]]] = {
    **dict.fromkeys(_FOREIGN, (0, 1, 100)),
    **{
        old: (*(_ASKED.get(new) or (0, 1, 100)), *_FRACTIONS)
        for new, old in _OLD.items()
        if new != names.RESOURCE_MEMORY
    },
    _OLD[names.RESOURCE_MEMORY]: (*_BYTES, *_FRACTIONS),
}


def container(name: str = "main", **more: Any) -> Json:
    return {"name": name, "image": "none", **more}


def asking(asked: dict[str, Any], name: str = "main", **more: Any) -> Json:
    return container(name, resources={"limits": asked, "requests": dict(asked)}, **more)


def pod(*containers: Json, scheduler: str = names.SCHEDULER_NAME, **metadata: Any) -> Json:
    """A pod that the API server accepts."""
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


def of_volcano(*containers: Json) -> Json:
    return pod(*containers, scheduler=VOLCANO.scheduler_name)


def binding(name: str, node: str, annotations: Mapping[str, str] | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def any_pod(chance: random.Random) -> Json:
    containers = [_any_container(f"c{n}", chance) for n in range(chance.choice((1, 1, 1, 2)))]
    if chance.random() < 0.3:
        containers.append({**_any_container("i0", chance), "init": True})
        if chance.random() < 0.5:
            containers[-1]["restartPolicy"] = "Always"
    labels, annotations = {}, {}
    if chance.random() < 0.2:
        values = (names.ISOLATION_PROVIDER, "HAMi-core", "mps", "")
        labels[names.LABEL_ISOLATION_PROVIDER] = chance.choice(values)
    if chance.random() < 0.2:
        values = ("binpack", "spread", "Spread", "")
        annotations[names.ANNOTATION_POLICY] = chance.choice(values)
    if chance.random() < 0.1:
        keys = (names.ANNOTATION_JOINT_ALLOCATE, names.ANNOTATION_PARTITION_SPEC)
        annotations[chance.choice(keys)] = chance.choice(("{}", ""))
    return pod(*containers, labels=labels, annotations=annotations)


def _any_container(name: str, chance: random.Random) -> Json:
    table = _ASKED if chance.random() < 0.7 else {**_ASKED, **_OTHERS}
    keys = chance.sample(sorted(table), chance.choice((0, 1, 2, 2, 3)))
    asked: dict[str, Any] = {key: chance.choice(table[key]) for key in keys}
    return asking(asked, name)


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
    }
    return {
        kind: (
            f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/default/{kind.lower()}s",
            {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec},
        )
        for kind, (version, spec) in made.items()
    }
