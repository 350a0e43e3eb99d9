"""Minimal pods and containers as a runtime describes them, and the policy's result for one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuslice.contract import names
from nri_plugin.containers.parts import Parts
from nri_plugin.gpu.contexts import Contexts
from nri_plugin.gpu.inventory import Inventory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.store import Store
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.policy import annotation_claims, plan
from nri_plugin.policy.checks import Request
from nri_plugin.policy.model import CdiDevice, Claim, Container, Gpu, Paths, Pod, Share, Specs
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Refusal, Refused
from nri_plugin.settings import Settings

Result = ContainerPlan | Refusal | None


def decide(
    pod: Pod, container: Container, gpus: Sequence[Gpu], specs: Specs, paths: Paths
) -> Result:
    """Return the policy's result as the agent gets it, with a refusal as a value."""
    try:
        granted = annotation_claims.claim(pod, container.name, gpus)
        if granted is None or not granted.shares:
            return plan.without_share(container, granted)
        key = plan.grant_key(pod, container, granted)
        return plan.with_share(Request(pod, container, granted, key, specs, paths))
    except Refused as error:
        return error.refusal


def planned(
    key: str,
    shares: Sequence[Share],
    shared: bool = False,
    container: str = "main",
    run: str = "/run/gpuslice",
    library: str = "/run/gpuslice/.store/abc/libvgpu.so",
) -> ContainerPlan:
    """Return a container's plan on a host whose CDI specs inject nothing."""
    specs = Specs({share.uuid: CdiDevice(share.uuid, "spec") for share in shares})
    of, claim = Container(key, container), Claim(shares, shared)
    paths = Paths(run, library)
    return plan.with_share(Request(Pod("uid", "ns", "pod"), of, claim, key, specs, paths))


def pod(
    number: int = 0, labels: dict[str, str] | None = None, **annotations: str
) -> nri.PodSandbox:
    """Return a pod. annotations: allocated=TEXT, grants=TEXT, or none."""
    keys = {"allocated": names.ANNOTATION_DEVICE_ALLOCATED, "grants": names.ANNOTATION_GRANTS}
    return nri.PodSandbox(
        id=f"sandbox-{number}",
        name=f"train-{number}",
        uid=f"uid-{number}",
        namespace="team",
        labels={names.LABEL_ISOLATION_PROVIDER: "hami-core"} if labels is None else labels,
        annotations={keys[k]: v for k, v in annotations.items()},
    )


def container(number: int = 0, name: str = "main", sandbox: int = 0) -> nri.Container:
    env = ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]
    return nri.Container(id=f"c{number}", pod_sandbox_id=f"sandbox-{sandbox}", name=name, env=env)


def clear(directory: RunDirectory) -> None:
    for key in directory.keys():  # noqa: SIM118 - a method, not a mapping
        directory.remove(key)


def parts(settings: Settings, inventory: Inventory | None = None, **more: Any) -> Parts:
    """Return an agent's parts. Their directories need not exist."""
    inventory = inventory or Inventory(os.environ)
    files = RunDirectory(settings.run_dir, lambda: 7)
    store = plain_store(settings.store_dir, settings.library)
    return Parts(settings, inventory, Contexts(os.environ, inventory), files, store, **more)


def settings(**more: Any) -> Settings:
    places = ("nri_socket", "run_dir", "library", "containerd_state")
    nowhere: dict[str, Any] = dict.fromkeys(places, Path("/nonexistent"))
    return Settings(index="50", cdi_dirs=(), environment=os.environ, **nowhere, **more)


def plain_store(directory: Path, library: Path) -> Store:
    """Return a store without a file system of its own, so that its tests need no root."""
    return Store(directory, library, lambda _: None)
