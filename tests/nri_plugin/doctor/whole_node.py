"""The facts of a node on which the doctor finds no problem, and changes to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nri_plugin.command_line import from_arguments
from nri_plugin.doctor import facts
from nri_plugin.policy.model import CdiDevice, Edits, Gpu, Hook, HookStage, Specs

GPU = Gpu("GPU-a", 0, 40 << 30)
HOOK = Hook(HookStage.CREATE_CONTAINER, "/usr/bin/nvidia-cdi-hook")
DEVICE = CdiDevice("GPU-a", "/etc/cdi/nvidia.yaml", Edits(hooks=(HOOK,)))


def config(
    validator: Mapping[str, Any] | None = None,
    *,
    handlers: Mapping[str, Any] | None = None,
    default: str = "runc",
    old: bool = False,
    cri: Mapping[str, Any] | None = None,
    **nri: Any,
) -> Mapping[str, Any]:
    """Return containerd's configuration as `config dump` prints it."""
    runtimes = {"runc": {"runtime_type": "io.containerd.runc.v2"}, **(handlers or {})}
    name = "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.runtime"
    checks = {"enable": True} if validator is None else validator
    pods = {
        "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"],
        "containerd": {"default_runtime_name": default, "runtimes": runtimes},
        **(cri or {}),
    }
    of_nri = {"disable": False, "default_validator": checks, **nri}
    return {"plugins": {"io.containerd.nri.v1.nri": of_nri, name: pods}}


def chosen(*options: str) -> dict[str, Any]:
    return {"settings": from_arguments(["--library=/l", "--node-name=node-1", *options], {})}


WHOLE = facts.Facts(
    **chosen(),
    root=True,
    socket=facts.Socket(True, True),
    runtime=facts.Runtime("containerd", "v2.4.2", config()),
    library_problem=None,
    library_published=True,
    gpus=(GPU,),
    gpus_problem=None,
    specs=Specs({"GPU-a": DEVICE}),
    missing={},
    nvidia=facts.NvidiaRuntime(),
    plugins=facts.DevicePlugins(),
    run_dir=facts.RunDir(True, 1 << 30, 1 << 20),
    kernel=facts.Kernel("6.1"),
    agent=facts.Agent(True, "ok"),
)
