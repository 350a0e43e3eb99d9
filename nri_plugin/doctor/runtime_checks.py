"""Checks of the container runtime: its socket, version, NRI configuration and validator. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, Final

from nri_plugin.doctor import nri_instructions
from nri_plugin.doctor.facts import Answer, Facts, Runtime, fail, ok, warn
from nri_plugin.host import bundle
from nri_plugin.protocol import runtimes
from nri_plugin.protocol.runtimes import Version

_TESTED_SINCE: Final[Version] = (2, 2, 0)
_NRI_ON_BY_DEFAULT: Final[Version] = (2, 0, 0)
_VALIDATOR_SINCE: Final[Version] = (2, 2, 0)
_NRI_TABLE: Final = "[plugins.'io.containerd.nri.v1.nri']"
_VALIDATOR_TABLE: Final = "[plugins.'io.containerd.nri.v1.nri'.default_validator]"


def socket(facts: Facts) -> Answer:
    settings, seen = facts.settings, facts.socket
    path = settings.on_host(settings.nri_socket)
    if seen.problem is not None:
        return fail(seen.problem, "set --nri-socket to the socket")
    if not seen.present:
        return fail(f"{path} does not exist", _turn_on(facts))
    if not seen.listening:
        return fail(
            f"{path} exists, but no process of this network namespace listens at it",
            "start containerd; in a pod, use hostNetwork",
        )
    return ok(f"{facts.runtime.name or 'a process'} listens at {path}")


def version(facts: Facts) -> Answer:
    runtime = facts.runtime
    if runtime.version is None:
        return warn(
            f"the runtime's version is not known: {runtime.problem}",
            "run the doctor as root with hostPID, while the runtime runs",
        )
    reported = f"{runtime.name} {runtime.version}"
    version, release = runtimes.parse(runtime.version), runtimes.find(runtime.version)
    if runtime.name != "containerd":
        return fail(
            f"{reported}: the agent does not serve it: the container runtime must be containerd",
            "run containerd 2.2 or later on nodes whose GPUs are shared",
        )
    if version is None or release is None or release.refused is not None:
        why = "not understood" if release is None else release.why_refused
        return fail(
            f"{reported}: the agent does not serve it: {why}",
            "upgrade to containerd 2.2 or later, or to 1.7.26 or later of 1.7",
        )
    if version[:2] != (1, 7) and version < _TESTED_SINCE:
        return warn(f"{reported}: not tested", "upgrade to containerd 2.2 or later")
    return ok(reported)


def nri(facts: Facts) -> Answer:
    runtime, table = facts.runtime, facts.runtime.nri
    if runtime.config is None:
        return _unread(runtime)
    if table.get("disable", not _at_least(runtime, _NRI_ON_BY_DEFAULT)):
        return fail(f"NRI is off in {runtime.config_file}", _turn_on(facts))
    if table.get("disable_connections"):
        return fail(
            f"{runtime.config_file} lets no plugin connect (disable_connections)",
            _lines(runtime, _NRI_TABLE, "disable_connections = false"),
        )
    return ok("NRI is on, and plugins may connect")


def validator(facts: Facts) -> Answer:
    runtime = facts.runtime
    if runtime.config is None:
        return _unread(runtime)
    if not _at_least(runtime, _VALIDATOR_SINCE):
        return warn(
            f"{runtime.name} {runtime.version or ''} has no validator: while the agent does not"
            " run, pods with a share start without their GPU",
            "upgrade to containerd 2.2 or later",
        )
    table = runtime.nri.get("default_validator", {})
    if not table.get("enable"):
        return warn(
            "the default validator is off: while the agent does not run, pods with a share start"
            " without their GPU, instead of waiting for it",
            _lines(runtime, _VALIDATOR_TABLE, "enable = true"),
        )
    if table.get("reject_oci_hook_adjustment"):
        hooks = [gpu.uuid for gpu in facts.gpus if _has_hooks(facts, gpu.uuid)]
        if hooks:
            return fail(
                f"the default validator rejects OCI hooks, which the CDI spec of {hooks[0]} has:"
                " every pod with a share is refused",
                _lines(runtime, _VALIDATOR_TABLE, "reject_oci_hook_adjustment = false"),
            )
    tolerated = table.get("tolerate_missing_plugins_annotation")
    if tolerated:
        return warn(
            f"pods with the annotation {tolerated} need no plugin, whichever component wrote it",
            "forbid that annotation outside of system namespaces by an admission policy",
        )
    return ok("the default validator is on")


def cdi(facts: Facts) -> Answer:
    """Check that containerd applies CDI specs, by which the kubelet requests whole GPUs."""
    settings, runtime = facts.settings, facts.runtime
    if not settings.whole_gpus:
        return ok("not used: the agent applies the specs itself")
    version = runtimes.parse(runtime.version or "")
    is_old = version is not None and version < (2, 0, 0)
    if not runtime.cri.get("enable_cdi", not is_old):
        table = f"[plugins.'io.containerd.{'grpc.v1.cri' if is_old else 'cri.v1.runtime'}']"
        return fail(
            f"CDI is off in {runtime.config_file}", _lines(runtime, table, "enable_cdi = true")
        )
    directories = runtime.cri.get("cdi_spec_dirs")
    # containerd must read the directories of all specs of GPUs, and of generated specs.
    files = (posixpath.dirname(device.file) for device in facts.specs.devices.values())
    ours = {settings.on_host(each) for each in (settings.generated_cdi_dir, *files)}
    if directories is not None and not {_followed(facts, each) for each in directories} >= ours:
        return fail(
            f"containerd reads CDI specs in {', '.join(directories)}, the agent in"
            f" {', '.join(sorted(ours))}",
            "set the agent's --cdi-dir to containerd's directories",
        )
    return ok("containerd applies CDI devices that the kubelet names")


def _followed(facts: Facts, path: object) -> str:
    """Resolve links in a path of containerd's configuration. The agent's settings have no links."""
    return facts.links.get(str(path), str(path))


def _unread(runtime: Runtime) -> Answer:
    return warn(
        f"the runtime's configuration is not known: {runtime.problem}",
        "run the doctor as root with hostPID, while containerd runs",
    )


def _turn_on(facts: Facts) -> str:
    own = nri_instructions.NRI.get(facts.platform)
    return f"turn NRI on: {own}" if own else _lines(facts.runtime, _NRI_TABLE, "disable = false")


def _lines(runtime: Runtime, table: str, *settings: str) -> str:
    """Return instructions to add settings to a table of containerd's configuration. The table must
    have the same name in every supported version."""
    written = "\n".join((table, *(f"  {each}" for each in settings)))
    return f"in {runtime.config_file}, then restart containerd:\n{written}"


def _at_least(runtime: Runtime, first: Version) -> bool:
    """Return whether the runtime's version is at least `first`. True if it is unknown."""
    version = runtimes.parse(runtime.version or "")
    return version is None or version >= first


def _has_hooks(facts: Facts, uuid: str) -> bool:
    device = facts.specs.devices.get(uuid)
    return device is not None and bool(device.own.hooks or device.common.hooks)


def handlers(runtime: Runtime) -> Mapping[str, Mapping[str, Any]]:
    tables = runtime.cri.get("containerd", {}).get("runtimes", {})
    return tables if isinstance(tables, Mapping) else {}


def default_handler(runtime: Runtime) -> str:
    return str(runtime.cri.get("containerd", {}).get("default_runtime_name", "runc"))


def cgroup_driver(runtime: Runtime) -> str:
    """Return the cgroup driver of the default runtime handler; systemd if it is not known."""
    handler = handlers(runtime).get(default_handler(runtime), {})
    of_cgroupfs = handler.get("options", {}).get("SystemdCgroup") is False
    return "cgroupfs" if of_cgroupfs else "systemd"


def state(facts: Facts) -> Answer:
    """Check that --containerd-state is the state directory of containerd's configuration."""
    settings, config = facts.settings, facts.runtime.config
    path = settings.on_host(settings.containerd_state)
    if config is None:
        return _unread(facts.runtime)
    theirs = str(config.get("state") or bundle.STATES[0])
    if path != _followed(facts, theirs):
        return fail(
            f"containerd's state is in {theirs}, the agent reads {path}: containers with a share"
            " are refused at their start",
            f"start the agent with --containerd-state {theirs}",
        )
    if not facts.state_seen:
        return warn(
            f"{path} shows no container of Kubernetes",
            "in a pod, mount the host's / at --host-root, with mountPropagation: HostToContainer",
        )
    return ok(path)


CHECKS: Final[Mapping[str, Callable[[Facts], Answer]]] = {
    "nri-socket": socket,
    "runtime": version,
    "containerd-state": state,
    "nri": nri,
    "validator": validator,
    "containerd-cdi": cdi,
}
