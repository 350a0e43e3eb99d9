"""The agent's settings as flags: name, help text, type and default of each.

A flag's type is a function from text to value. It raises ArgumentTypeError, with the allowed
values, if the text is invalid.
"""

from __future__ import annotations

import argparse
import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names, quantity
from gpuslice.contract.dialects import DIALECTS, KOORDINATOR, Dialect
from gpuslice.contract.grant_file import Policy
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.gpu import driver_root
from gpuslice.kube.log_lines import Format
from nri_plugin.host import bundle, discovery
from nri_plugin.host.bundle import LOOSENING
from nri_plugin.policy.capabilities import ALL, ALWAYS, CAPABILITIES
from nri_plugin.policy.front_ends import FrontEnd
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.policy.memory_limits import MemoryLimits
from nri_plugin.settings import Address

# --- types ---------------------------------------------------------------------------------------

_MAX_CODE_BYTES: Final = 64 << 30


def _invalid(text: str, must: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"invalid value {text!r}: must be {must}")


def _matching(pattern: str, must: str) -> Callable[[str], str]:
    """Return a flag's type that accepts texts that match `pattern`."""

    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise _invalid(text, must)
        return text

    return convert


nri_index: Final = _matching("[0-9]{2}", "two digits, 00 to 99")
node_name: Final = _matching("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "a node's name in lower case")
"""The type of the node's name, restricted because paths and field selectors contain the name."""
_cdi_kind: Final = _matching("[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "VENDOR/CLASS")


def cdi_kind(text: str) -> str:
    if text == names.CDI_KIND_MANAGEMENT:
        raise _invalid(text, "a kind for tenants: its device has every GPU")
    return _cdi_kind(text)


def absolute(text: str) -> Path:
    """Normalize an absolute path. It is compared with containerd's mount sources as text."""
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise _invalid(text, "an absolute path without '..'")
    return path


def address(text: str) -> Address | None:
    if text == "off":
        return None
    if text.startswith("unix:"):
        return absolute(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise _invalid(text, "HOST:PORT, unix:PATH or off")
    return host, int(port)


def capabilities(text: str) -> AbstractSet[str]:
    """Parse a comma-separated list of driver capabilities. Adds those that are always injected."""
    chosen = _listed(text)
    unknown = chosen - {*CAPABILITIES, ALL}
    if unknown:
        raise _invalid(", ".join(sorted(unknown)), f"some of {', '.join((*CAPABILITIES, ALL))}")
    return frozenset(CAPABILITIES) if ALL in chosen else ALWAYS | chosen


def dialects(text: str) -> Sequence[Dialect]:
    known = {each.name: each for each in DIALECTS}
    chosen = [each.strip() for each in text.split(",")]
    if not known.keys() >= set(chosen):
        raise _invalid(text, f"some of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(chosen)]


def offer(text: str) -> Offer:
    if text in ("off", "any"):
        return Offer(any=text == "any")
    chosen = _listed(text)
    if not chosen or not all(re.fullmatch("[0-9]{1,3}|GPU-[-0-9a-f]+", each) for each in chosen):
        raise _invalid(text, "off, any, or indexes and UUIDs of GPUs")
    return Offer(reserved=chosen)


def _listed(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def size(text: str) -> int:
    parsed = quantity.parse(text)
    if not isinstance(parsed, quantity.Value) or parsed.amount > _MAX_CODE_BYTES:
        raise _invalid(text, f"0 to {quantity.format_binary(_MAX_CODE_BYTES)}")
    return parsed.amount


def loosening(text: str) -> str:
    name = bundle.plain(text)
    if name not in LOOSENING:
        raise _invalid(text, f"one of {', '.join(LOOSENING)}")
    return name


def command(text: str) -> Sequence[str]:
    try:
        return () if text == "off" else tuple(shlex.split(text))
    except ValueError as error:
        raise _invalid(text, f"a shell command: {error}") from error


# --- flags ---------------------------------------------------------------------------------------

_Flag = tuple[str, Mapping[str, Any]]


def _value(what: str, convert: Any, metavar: str | None, default: Any = None, **more: Any) -> _Flag:
    return what, {"type": convert, "metavar": metavar, "default": default, **more}


def _path(what: str, default: str | None = None, **more: Any) -> _Flag:
    return _value(what, absolute, "PATH", default, **more)


def _choice(what: str, *choices: str) -> _Flag:
    """Return a flag with these choices. The first choice is the default."""
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
        absolute,
        "DIR",
    ),
    "--cdi-kind": _list(
        "kind of CDI device that describes GPUs by UUID, before"
        f" {' and '.join(names.CDI_KINDS)}, repeatable; the first one that has the GPU is used",
        cdi_kind,
        "KIND",
    ),
    "--index": _value("two digits: the order among NRI plugins", nri_index, None, "50"),
    "--strict": _switch(
        "mount a forwarder over each driver library, so that the limit also applies to programs"
        " linked with musl and to libraries opened by dlmopen; needs forwarder.so beside --library"
    ),
    "--driver-capabilities": _value(
        "what containers may request by NVIDIA_DRIVER_CAPABILITIES: compute and utility, always,"
        f" and any of {_MORE_CAPABILITIES}, or all; memory taken through others than compute is not"
        " limited",
        capabilities,
        "LIST",
        "compute,utility",
    ),
    "--whole-gpus": _value(
        f"GPUs that the agent, as the node's device plugin, offers as {names.RESOURCE_NVIDIA_GPU}:"
        " off; any (every GPU without a share); or a comma-separated list of indexes and UUIDs of"
        " GPUs that are only for whole use; needs a containerd with CDI",
        offer,
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
        dialects,
        "LIST",
        KOORDINATOR.name,
    ),
    "--code-bytes": _value(
        "what a process is charged for code beside its CUDA context, until a measurement includes"
        " it: bytes, or 256Mi",
        size,
        "SIZE",
        f"{CODE_BYTES >> 20}Mi",
    ),
    "--managed-memory": _choice(
        "free: containers may have more managed memory (cudaMallocManaged) than their limit, and"
        " than the GPU; its resident memory is measured (default: charged in full)",
        "charged",
        "free",
    ),
    "--memory-limits": _choice(
        "what limits GPU memory: the library; auto (the driver too, where its release is 615 or"
        " newer and the host has cgroup v2); driver (the same, and a node or container without the"
        " driver's limit is refused)",
        *MemoryLimits,
    ),
    "--cgroup-root": _path(
        "directory of cgroup v2, in which --memory-limits finds containers", "/sys/fs/cgroup"
    ),
    "--core-policy": _choice(
        "how containers share a GPU's time, unless their pod's annotation"
        f" {names.ANNOTATION_COMPUTE} says otherwise: fair (each gets its share, and what others"
        " leave), capped (its share and no more), turns (exclusive windows), background (only what"
        " others leave)",
        *Policy,
    ),
    "--nvidia-ctk": _value(
        "command that generates CDI specs for GPUs without a usable one; off: no spec is generated",
        command,
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
        node_name,
        "NAME",
        socket.gethostname().lower(),
    ),
    "--front-end": _choice(
        f"how pods request shares of this node's GPUs, unless its label {names.LABEL_FRONT_END}"
        " says otherwise: annotations (by gpuslice's scheduler), claims (ResourceClaims, by"
        " kube-scheduler 1.36 or newer)",
        *FrontEnd,
    ),
    "--http": _value(
        "address of /healthz, /readyz and /metrics: HOST:PORT, unix:PATH or off",
        address,
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
        loosening,
        "NAME",
    ),
    "--verbose": _switch("also log routine requests"),
}
"""The help text and argparse options of each flag. Defaults are texts, converted like arguments."""
