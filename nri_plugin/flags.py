"""The agent's settings as flags: name, help text, type and default of each."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.contract.dialects import DIALECTS, KOORDINATOR
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.gpu import driver_root
from gpuslice.kube.log_lines import Format
from nri_plugin import setting_types
from nri_plugin.host import bundle, discovery
from nri_plugin.host.bundle import LOOSENING
from nri_plugin.policy.capabilities import ALWAYS, CAPABILITIES

_Flag = tuple[str, Mapping[str, Any]]


def _value(what: str, convert: Any, metavar: str | None, default: Any = None, **more: Any) -> _Flag:
    return what, {"type": convert, "metavar": metavar, "default": default, **more}


def _path(what: str, default: str | None = None, **more: Any) -> _Flag:
    return _value(what, setting_types.absolute, "PATH", default, **more)


def _choice(what: str, *choices: str) -> _Flag:
    """Return a flag with these choices; the first is the default."""
    return what, {"choices": choices, "default": choices[0]}


def _list(what: str, convert: Any, metavar: str) -> _Flag:
    return what, {"action": "append", "type": convert, "default": [], "metavar": metavar}


def _switch(what: str) -> _Flag:
    return what, {"action": "store_true"}


_MORE_CAPABILITIES: Final = ", ".join(each for each in CAPABILITIES if each not in ALWAYS)

FLAGS: Final[Mapping[str, _Flag]] = {
    "--library": _path("libvgpu.so of this release, published into the store", required=True),
    "--host-root": _path(
        "directory at which the host's root directory is seen; in a pod, where it is mounted. The"
        " other paths of the host are given as the host has them",
        "/",
    ),
    "--nri-socket": _path("containerd's NRI socket", str(discovery.NRI_SOCKET)),
    "--run-dir": _path(
        "directory of the containers' grants, regions and library; it has the same path in a pod"
        " and on the host",
        names.HOST_RUN_DIR,
    ),
    "--containerd-state": _path(
        "containerd's state directory (default: of these, where containers of Kubernetes run:"
        f" {', '.join(map(str, bundle.STATES))})"
    ),
    "--cdi-dir": _list(
        "directory of CDI specs beside /etc/cdi and /var/run/cdi, repeatable; a later directory"
        " takes precedence over earlier ones and over these two",
        setting_types.absolute,
        "DIR",
    ),
    "--cdi-kind": _list(
        "kind of CDI device that describes GPUs by UUID, before"
        f" {' and '.join(names.CDI_KINDS)}, repeatable; the first one that has the GPU is used",
        setting_types.cdi_kind,
        "KIND",
    ),
    "--index": _value(
        "two digits: the order among NRI plugins", setting_types.nri_index, None, "50"
    ),
    "--strict": _switch(
        "mount a forwarder over each driver library, so that the limit also applies to programs"
        " linked with musl and to libraries opened by dlmopen; needs forwarder.so beside --library"
    ),
    "--driver-capabilities": _value(
        "what containers may request by NVIDIA_DRIVER_CAPABILITIES: compute and utility, always,"
        f" and any of {_MORE_CAPABILITIES}, or all; memory taken through others than compute is not"
        " limited",
        setting_types.capabilities,
        "LIST",
        "compute,utility",
    ),
    "--whole-gpus": _value(
        f"GPUs that the agent, as the node's device plugin, offers as {names.RESOURCE_NVIDIA_GPU}:"
        " off; any (every GPU without a share); or a comma-separated list of indexes and UUIDs of"
        " GPUs that are only for whole use; needs a containerd with CDI",
        setting_types.offer,
        "GPUS",
        "off",
    ),
    "--kubelet-dir": _path(
        "the kubelet's --root-dir (default: the first of these that the kubelet uses:"
        f" {', '.join(map(str, discovery.KUBELETS))})"
    ),
    "--dialects": _value(
        "request dialects whose resources the node reports, comma-separated:"
        f" {', '.join(each.name for each in DIALECTS)}",
        setting_types.dialects,
        "LIST",
        KOORDINATOR.name,
    ),
    "--code-bytes": _value(
        "what a process is charged for code beside its CUDA context, until a measurement includes"
        " it: bytes, or 256Mi",
        setting_types.size,
        "SIZE",
        f"{CODE_BYTES >> 20}Mi",
    ),
    "--managed-memory": _choice(
        "free: containers may have more managed memory (cudaMallocManaged) than their limit, and"
        " than the GPU; its resident memory is measured (default: charged in full)",
        "charged",
        "free",
    ),
    "--core-policy": _choice(
        "force: a container's share of compute is a cap also while no other container uses the GPU"
        " (default: an idle GPU is free for all)",
        "default",
        "force",
    ),
    "--nvidia-ctk": _value(
        "command that generates CDI specs for GPUs without a usable one; off: no spec is generated",
        setting_types.command,
        "COMMAND",
        "nvidia-ctk",
    ),
    "--driver-root": _path(
        "the host's directory of the driver's files: its libcuda.so.1 and libnvidia-ml.so.1 are"
        " used, and CDI specs are generated from it (default: what GPU Operator's validator"
        f" reports, else the first of these that has {driver_root.NVML}:"
        f" {', '.join(driver_root.ROOTS)})"
    ),
    "--kubeconfig": _path(
        "file with the address and credentials of the API server, which receives this node's GPUs"
        " and totals (default: those of the agent's pod; outside a pod the agent runs without an"
        " API server)"
    ),
    "--node-name": _value(
        "this node's name at the API server (default: the host's)",
        setting_types.node_name,
        "NAME",
        socket.gethostname().lower(),
    ),
    "--http": _value(
        "address of /healthz, /readyz and /metrics: HOST:PORT, unix:PATH or off",
        setting_types.address,
        "ADDRESS",
        "127.0.0.1:10275",
    ),
    "--log-format": _value("format of the log", Format, None, "logfmt", choices=tuple(Format)),
    "--unenforceable": _choice(
        "a container with a grant whose entry point does not load the library (static, musl, 32"
        " bit): report it (LimitNotEnforceable), or refuse to start it",
        "report",
        "refuse",
    ),
    "--runtime-handler": _list(
        "another runtime handler that runs containers on this kernel, repeatable; containers with a"
        " grant are refused except under these and the default, runc, crun and NVIDIA's",
        str,
        "NAME",
    ),
    "--allow-capability": _list(
        "Linux capability that a container with a grant may have although the container can then"
        f" remove its own limit, repeatable: {', '.join(LOOSENING)} (default: none)",
        setting_types.loosening,
        "NAME",
    ),
    "--verbose": _switch("also log routine requests"),
}
"""Help text and argparse options of each flag. Texts, defaults too, are converted by its type."""
