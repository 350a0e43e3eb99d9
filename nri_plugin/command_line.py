"""Settings from flags and the environment, and the text of --help.

Only __main__ and the doctor call it; no other module reads arguments or environment. Each flag has
a variable, e.g. GPUSLICE_AGENT_RUN_DIR for `--run-dir`; the flag takes precedence.
"""

from __future__ import annotations

import argparse
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from contract import names, quantity
from contract.dialects import DIALECTS, KOORDINATOR, Dialect
from contract.overhead import CODE_BYTES
from gpu import driver_root
from kube.log_lines import Format
from nri_plugin.host import bundle
from nri_plugin.host.bundle import LOOSENING, plain
from nri_plugin.policy.capabilities import ALL, ALWAYS, CAPABILITIES
from nri_plugin.policy.gpu_modes import Offer
from nri_plugin.policy.model import Rules
from nri_plugin.settings import Address, Settings

_DESCRIPTION: Final = """\
gpuslice's node agent: brings containers their share of a GPU, with its limit, through the container
runtime's NRI. A pod gets a GPU from this agent or not at all.

  python -m nri_plugin [settings]          serve (what this page is about)
  python -m nri_plugin doctor [settings]   check this node and list what to change; changes nothing
  python -m nri_plugin enable-nri          turn NRI on in containerd, or leave it as it was
  python -m nri_plugin uninstall           remove what gpuslice put on this node
"""

_EPILOG: Final = """\
Each setting is also read from the environment: --run-dir from GPUSLICE_AGENT_RUN_DIR; switches take
true or false, what is repeatable is separated by colons. A flag outranks the environment.

The agent serves until SIGTERM, and reconnects when containerd restarts. Its one line on standard
output, "ready: ...", means that containers are adjusted from then on; its log is on standard error.
HTTP endpoints: /healthz (the event loop runs), /readyz (containers get their share now; else the
reasons), /metrics (for Prometheus).

In a pod it needs: root, hostPID, the host's directories under the same paths as on the host, the
run directory and containerd's state with mount propagation (Bidirectional, HostToContainer), and
the driver root read-only (HostToContainer; --driver-root, --driver-root-mount). For probes by the
kubelet, hostNetwork and httpGet with host 127.0.0.1.

examples:
  python -m nri_plugin --library /opt/gpuslice/libvgpu.so
  python -m nri_plugin --library /opt/gpuslice/libvgpu.so --http 0.0.0.0:10275 --log-format json
  curl 127.0.0.1:10275/readyz
"""
_ENVIRONMENT_PREFIX: Final = "GPUSLICE_AGENT_"
_MOST_CODE_BYTES: Final = 64 << 30
_CDI_DIRS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
_Flag = tuple[str, Mapping[str, Any]]
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nri_plugin",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag, (what, more) in _FLAGS.items():
        has_default = "(default: " in what or not isinstance(more.get("default"), str)
        text = what if has_default else f"{what} (default: {more['default']})"
        parser.add_argument(flag, help=text, **more)
    return parser


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Return the settings. Exits, as argparse does, for invalid arguments and for --help."""
    known = parser()
    return of(parse(known, arguments, environment), environment)


def parse(
    known: argparse.ArgumentParser, arguments: Sequence[str], environment: Mapping[str, str]
) -> argparse.Namespace:
    """Return the values of flags, or else of the environment. Exits if a value is invalid."""
    lists: dict[str, object] = {}
    for action in known._actions:
        variable = variable_of(action)
        text = environment.get(variable, "") if variable is not None else ""
        if not text:
            continue
        try:
            value = _from_text(action, text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            known.error(f"environment {variable}: {error}")
        if isinstance(action, argparse._AppendAction):
            lists[action.dest] = value  # flags would append to a default, not replace it
        else:
            action.default, action.required = value, False
    given = known.parse_args(arguments)
    for name, value in lists.items():
        if not getattr(given, name):
            setattr(given, name, value)
    if given.strict and given.cdi_by_name:
        known.error(
            "--strict: must not be set with --cdi-by-name, under which containerd mounts the driver"
        )
    return given


def of(given: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Convert to Settings: most flags have a setting's name and value; the others are mapped."""
    known = {field.name for field in fields(Settings)}
    settings = {name: value for name, value in vars(given).items() if name in known}
    handlers = (*Rules().runtime_handlers, *given.runtime_handler)
    mount = given.driver_root_mount or given.driver_root
    below = {} if mount == Path("/") else {driver_root.VARIABLE: str(mount)}
    settings |= {
        "cdi_kinds": tuple(given.cdi_kind or names.CDI_KINDS),
        "cdi_dirs": _extended(_CDI_DIRS, given.cdi_dir or ()),
        "containerd_state": given.containerd_state or bundle.find_state(),
        "core_forced": given.core_policy == "force",
        "driver_root_mount": mount,
        "environment": {**environment, **below},
        "kubeconfig": str(given.kubeconfig or ""),
        "managed_free": given.managed_memory == "free",
        "refuse_unenforceable": given.unenforceable == "refuse",
        "rules": Rules(handlers, frozenset(given.allow_capability)),
    }
    return Settings(**settings)


def _extended(defaults: Sequence[Path], given: Sequence[Path]) -> Sequence[Path]:
    """Append given values to the defaults, so that no default can be omitted by accident."""
    return (*(path for path in defaults if path not in given), *dict.fromkeys(given))


def variable_of(action: argparse.Action) -> str | None:
    """Return the environment variable of a setting; None if it has none, such as --help."""
    if action.dest in {argparse.SUPPRESS, "help"} or not action.option_strings:
        return None
    return _ENVIRONMENT_PREFIX + action.dest.upper()


def _from_text(action: argparse.Action, text: str) -> object:
    if action.nargs == 0:
        if text.lower() not in _SWITCH:
            raise ValueError(f"invalid value {text!r}: must be true or false")
        return _SWITCH[text.lower()]
    convert: Any = action.type or str
    if isinstance(action, argparse._AppendAction):
        return [convert(part) for part in text.split(":") if part]
    value = convert(text)
    if action.choices is not None and value not in action.choices:
        allowed = ", ".join(map(str, action.choices))
        raise ValueError(f"invalid value {text!r}: must be one of {allowed}")
    return value


def absolute(text: str) -> Path:
    """Normalize to an absolute path: mount sources are compared with containerd's as text."""
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be an absolute path without '..'"
        )
    return path


def _address(text: str) -> Address | None:
    if text == "off":
        return None
    if text.startswith("unix:"):
        return absolute(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be HOST:PORT, unix:PATH or off"
        )
    return host, int(port)


def _capabilities(text: str) -> AbstractSet[str]:
    """Parse a comma-separated list, as the environment has it."""
    chosen = {each.strip() for each in text.split(",") if each.strip()}
    unknown = chosen - {*CAPABILITIES, ALL}
    if unknown:
        known = ", ".join((*CAPABILITIES, ALL))
        raise argparse.ArgumentTypeError(
            f"invalid value {', '.join(sorted(unknown))!r}: must be some of {known}"
        )
    return frozenset(CAPABILITIES) if ALL in chosen else ALWAYS | chosen


def _dialects(text: str) -> Sequence[Dialect]:
    known = {each.name: each for each in DIALECTS}
    chosen = [each.strip() for each in text.split(",")]
    if not known.keys() >= set(chosen):
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be some of {', '.join(known)}"
        )
    return [known[name] for name in dict.fromkeys(chosen)]


def _offer(text: str) -> Offer:
    chosen = frozenset(each.strip() for each in text.split(",") if each.strip())
    wrong = [each for each in chosen if not re.fullmatch("[0-9]{1,3}|GPU-[-0-9a-f]+", each)]
    if text in ("off", "any"):
        return Offer(any=text == "any")
    if wrong or not chosen:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be off, any, or indexes and UUIDs of GPUs"
        )
    return Offer(reserved=chosen)


def _bytes(text: str) -> int:
    found = quantity.parse(text)
    if not isinstance(found, quantity.Value) or found.amount > _MOST_CODE_BYTES:
        most = quantity.format_binary(_MOST_CODE_BYTES)
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be 0 to {most}")
    return found.amount


def _loosening(text: str) -> str:
    name = plain(text)
    if name not in LOOSENING:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be one of {', '.join(LOOSENING)}"
        )
    return name


def _command(text: str) -> Sequence[str]:
    try:
        return () if text == "off" else tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a shell command: {error}"
        ) from error


def _cdi_kind(text: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be VENDOR/CLASS")
    if text == names.CDI_KIND_MANAGEMENT:
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a kind for tenants: its device has every GPU"
        )
    return text


def _node_name(text: str) -> str:
    """Validate the name: it becomes a part of paths and selectors."""
    if not re.fullmatch("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"invalid value {text!r}: must be a node's name in lower case"
        )
    return text


def _index(text: str) -> str:
    if not re.fullmatch("[0-9]{2}", text):
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be two digits, 00 to 99")
    return text


def _value(what: str, convert: Any, metavar: str | None, default: Any = None, **more: Any) -> _Flag:
    return what, {"type": convert, "metavar": metavar, "default": default, **more}


def _choice(what: str, *choices: str) -> _Flag:
    """Return a flag with these choices; the first is the default."""
    return what, {"choices": choices, "default": choices[0]}


def _list(what: str, convert: Any, metavar: str) -> _Flag:
    return what, {"action": "append", "type": convert, "default": [], "metavar": metavar}


def _switch(what: str) -> _Flag:
    return what, {"action": "store_true"}


_MORE_CAPABILITIES: Final = ", ".join(each for each in CAPABILITIES if each not in ALWAYS)

_FLAGS: Final[Mapping[str, _Flag]] = {
    "--library": _value(
        "libvgpu.so of this release, published into the store", absolute, "PATH", required=True
    ),
    "--nri-socket": _value("containerd's NRI socket", absolute, "PATH", "/var/run/nri/nri.sock"),
    "--run-dir": _value(
        "where containers' grants and regions live", absolute, "PATH", names.HOST_RUN_DIR
    ),
    "--store-dir": _value(
        "where the library is kept, by content hash", absolute, "PATH", names.HOST_STORE_DIR
    ),
    "--containerd-state": _value(
        "containerd's state directory (default: that of these which has containers of Kubernetes:"
        f" {', '.join(map(str, bundle.STATES))})",
        absolute,
        "PATH",
    ),
    "--cdi-dir": _list(
        "directory of CDI specs beside /etc/cdi and /var/run/cdi, repeatable; the last outranks the"
        " others, and these two",
        absolute,
        "DIR",
    ),
    "--cdi-kind": _list(
        "kind of CDI device that describes GPUs by UUID, repeatable; the first with a GPU's device"
        f" counts (default: {', then '.join(names.CDI_KINDS)})",
        _cdi_kind,
        "KIND",
    ),
    "--index": _value("two digits, place among NRI plugins", _index, None, "50"),
    "--remove-unverified": _switch(
        "delete pods that do not fit on their GPU in the order of binding, instead of refusing"
        " their containers; the chart's agent.deletePods grants the right"
    ),
    "--strict": _switch(
        "mount a forwarder over each driver library, so that programs of musl, and libraries opened"
        " by dlmopen, meet the limit too; needs forwarder.so beside --library"
    ),
    "--driver-capabilities": _value(
        "what containers may request by NVIDIA_DRIVER_CAPABILITIES: compute and utility, always,"
        f" and any of {_MORE_CAPABILITIES}, or all; memory taken through others than compute is not"
        " limited",
        _capabilities,
        "LIST",
        "compute,utility",
    ),
    "--cdi-by-name": _switch(
        "request the GPU's CDI device of containerd, instead of applying its spec: for nodes whose"
        " default validator rejects OCI hooks; needs containerd 1.7.30 or 2.1, and not --strict"
    ),
    "--whole-gpus": _value(
        f"which GPUs pods may hold whole, by {names.RESOURCE_NVIDIA_GPU}, with the agent as the"
        " node's device plugin: off; any without a share; or a comma-separated list of indexes and"
        " UUIDs of GPUs that are given whole only; needs a containerd with CDI",
        _offer,
        "GPUS",
        "off",
    ),
    "--kubelet-dir": _value("the kubelet's --root-dir", absolute, "PATH", "/var/lib/kubelet"),
    "--dialects": _value(
        "request dialects whose totals the node shows, comma-separated:"
        f" {', '.join(each.name for each in DIALECTS)}",
        _dialects,
        "LIST",
        KOORDINATOR.name,
    ),
    "--code-bytes": _value(
        "what a process is charged for code beside its CUDA context, until the second in which a"
        " measurement has seen it: bytes, or 256Mi",
        _bytes,
        "SIZE",
        f"{CODE_BYTES >> 20}Mi",
    ),
    "--managed-memory": _choice(
        "free: containers may have more managed memory (cudaMallocManaged) than their limit, and"
        " than the GPU; what of it lies on the GPU is measured (default: charged in full)",
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
        "makes CDI specs for GPUs that have none, e.g. 'chroot /host nvidia-ctk'; off: nothing"
        " does",
        _command,
        "COMMAND",
        "nvidia-ctk",
    ),
    "--driver-root": _value(
        "the host's directory of the driver's files, /run/nvidia/driver for GPU Operator's driver"
        " container; its libcuda.so.1 and libnvidia-ml.so.1 are used, and CDI specs are generated"
        " from it (default: /, whose libraries the dynamic loader finds)",
        absolute,
        "PATH",
        "/",
    ),
    "--driver-root-mount": _value(
        "where the agent sees that directory, if it runs in a pod (default: the same path)",
        absolute,
        "PATH",
    ),
    "--kubeconfig": _value(
        "how to reach the API server, which receives this node's GPUs and totals (default: as a pod"
        " of the cluster; outside of one the agent works without)",
        absolute,
        "PATH",
    ),
    "--node-name": _value(
        "this node's name at the API server (default: the host's)",
        _node_name,
        "NAME",
        socket.gethostname().lower(),
    ),
    "--http": _value(
        "HOST:PORT, unix:PATH or off, where /healthz, /readyz and /metrics are served",
        _address,
        "ADDRESS",
        "127.0.0.1:10275",
    ),
    "--log-format": _value(
        "how the lines of the log are written", Format, None, "logfmt", choices=tuple(Format)
    ),
    "--unenforceable": _choice(
        "what becomes of a container with a grant whose entry point no limit reaches (static, musl,"
        " 32 bit): report it (LimitNotEnforceable), or refuse to start it",
        "report",
        "refuse",
    ),
    "--runtime-handler": _list(
        "another runtime handler that runs containers on this kernel, repeatable; grants are"
        " refused under all but these and the default, runc, crun and NVIDIA's",
        str,
        "NAME",
    ),
    "--allow-capability": _list(
        "Linux capability that a container with a grant may have, though it can take its limit away"
        f" with it, repeatable: {', '.join(LOOSENING)} (default: none)",
        _loosening,
        "NAME",
    ),
    "--verbose": _switch("log what is routine, too"),
}
"""Help text and argparse options of each flag. Texts, defaults too, are converted by its type."""
