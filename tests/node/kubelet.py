"""Does the kubelet's work for a pod's container by CRI: its mounts, environment and security."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lab.node.cri import Process

Json: TypeAlias = dict[str, Any]


def security(container: Json) -> Json:
    written: Json = container.get("securityContext", {})
    return written


def process(
    container: Json, image: str, volumes: Mapping[str, Path], environ: Mapping[str, str]
) -> Process:
    """volumes: the paths of the volumes on the host, by name."""
    mounts = {each["mountPath"]: each for each in container.get("volumeMounts", ())}
    places: tuple[dict[str, Path], dict[str, Path]] = ({}, {})
    for inside, each in mounts.items():
        places[each.get("readOnly", False)][inside] = volumes[each["name"]]
    allowed = security(container)
    return Process(
        image,
        [str(word) for word in container["command"]],
        environ,
        mounts=places[False],
        read_mounts=places[True],
        propagation={
            inside: each["mountPropagation"]
            for inside, each in mounts.items()
            if "mountPropagation" in each
        },
        user=allowed.get("runAsUser"),
        capabilities=allowed.get("capabilities", {}).get("add", ()),
        read_only=allowed.get("readOnlyRootFilesystem", False),
        privileged=allowed.get("privileged", False),
    )
