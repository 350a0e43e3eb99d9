"""Minimal pods and containers as a runtime describes them."""

from __future__ import annotations

from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri


def pod(number: int = 0, **annotations: str) -> nri.PodSandbox:
    return nri.PodSandbox(
        id=f"sandbox-{number}",
        name=f"pod-{number}",
        uid=f"uid-{number}",
        namespace="default",
        labels={"app": "test"},
        annotations=annotations,
    )


def container(number: int = 0, *env: str) -> nri.Container:
    return nri.Container(
        id=f"container-{number}",
        pod_sandbox_id=f"sandbox-{number}",
        name="main",
        env=["PATH=/bin", *env],
        mounts=[nri.Mount(destination="/proc", type="proc", source="proc")],
    )


def clear(directory: RunDirectory) -> None:
    """Remove its whole content."""
    for key in directory.keys():  # noqa: SIM118 - a method, not a mapping
        directory.remove(key)
