"""What the container runtime must be and be told: its socket, version, NRI, validator. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nri_plugin import bundle, by_name
from nri_plugin.doctor.facts import Facts, Finding, Level, Runtime
from nri_plugin.protocol import runtimes
from nri_plugin.protocol.runtimes import Version

_TESTED: Final = ((1, 7), (2, 2), (2, 3), (2, 4))
_NRI_ON_BY_DEFAULT: Final[Version] = (2, 0, 0)
_VALIDATOR_SINCE: Final[Version] = (2, 2, 0)
_NRI_TABLE: Final = "[plugins.'io.containerd.nri.v1.nri']"
_VALIDATOR_TABLE: Final = "[plugins.'io.containerd.nri.v1.nri'.default_validator]"


def socket(facts: Facts) -> Finding:
    path, seen = facts.settings.nri_socket, facts.socket
    if seen.problem is not None:
        return Finding("nri-socket", Level.FAIL, seen.problem, "name the socket by --nri-socket")
    if not seen.present:
        return Finding("nri-socket", Level.FAIL, f"{path} is not there", _turn_on(facts.runtime))
    if not seen.listening:
        return Finding(
            "nri-socket",
            Level.FAIL,
            f"{path} is there, but no process of this network namespace listens at it",
            "start containerd; in a pod, mount the socket's directory, not the socket, and use"
            " hostNetwork",
        )
    return Finding("nri-socket", Level.OK, f"{facts.runtime.name or 'a process'} listens at {path}")


def version(facts: Facts) -> Finding:
    runtime = facts.runtime
    if runtime.version is None:
        return Finding(
            "runtime",
            Level.WARN,
            f"the runtime's version is not known: {runtime.problem}",
            "run the doctor as root with hostPID, while the runtime runs",
        )
    said = f"{runtime.name} {runtime.version}"
    found, release = runtimes.parse(runtime.version), runtimes.find("containerd", runtime.version)
    if runtime.name != "containerd":
        return Finding(
            "runtime",
            Level.FAIL,
            f"{said}: the agent does not serve it: the container runtime must be containerd",
            "run containerd 2.2 or later on nodes whose GPUs are shared",
        )
    if found is None or release is None or release.refused is not None:
        why = "not understood" if release is None else release.why_refused
        return Finding(
            "runtime",
            Level.FAIL,
            f"{said}: the agent does not serve it: {why}",
            "upgrade to containerd 2.2 or later, or to 1.7.26 or later of 1.7",
        )
    if found[:2] not in _TESTED and found < (2, 4, 0):
        return Finding(
            "runtime", Level.WARN, f"{said}: not tested", "upgrade to containerd 2.2 or later"
        )
    return Finding("runtime", Level.OK, said)


def nri(facts: Facts) -> Finding:
    runtime, table = facts.runtime, facts.runtime.nri
    if runtime.config is None:
        return _unread("nri", runtime)
    if table.get("disable", not _at_least(runtime, _NRI_ON_BY_DEFAULT)):
        return Finding("nri", Level.FAIL, f"NRI is off in {runtime.config_file}", _turn_on(runtime))
    if table.get("disable_connections"):
        return Finding(
            "nri",
            Level.FAIL,
            f"{runtime.config_file} lets no plugin connect (disable_connections)",
            _lines(runtime, _NRI_TABLE, "disable_connections = false"),
        )
    return Finding("nri", Level.OK, "NRI is on, and plugins may connect")


def validator(facts: Facts) -> Finding:
    runtime = facts.runtime
    if runtime.config is None:
        return _unread("validator", runtime)
    if not _at_least(runtime, _VALIDATOR_SINCE):
        return Finding(
            "validator",
            Level.WARN,
            f"{runtime.name} {runtime.version or ''} has no validator: while the agent is away,"
            " pods with a share start without their card",
            "upgrade to containerd 2.2 or later",
        )
    table = runtime.nri.get("default_validator", {})
    if not table.get("enable"):
        return Finding(
            "validator",
            Level.WARN,
            "the default validator is off: while the agent is away, pods with a share start without"
            " their card, instead of waiting for it",
            _lines(runtime, _VALIDATOR_TABLE, "enable = true"),
        )
    if table.get("reject_oci_hook_adjustment") and not facts.settings.cdi_by_name:
        hooks = [card.uuid for card in facts.cards if _has_hooks(facts, card.uuid)]
        if hooks:
            return Finding(
                "validator",
                Level.FAIL,
                f"the default validator rejects OCI hooks, which the CDI spec of {hooks[0]} holds:"
                " every pod with a share is refused",
                "start the agent with --cdi-by-name, or: "
                + _lines(runtime, _VALIDATOR_TABLE, "reject_oci_hook_adjustment = false"),
            )
    tolerated = table.get("tolerate_missing_plugins_annotation")
    if tolerated:
        return Finding(
            "validator",
            Level.WARN,
            f"pods with the annotation {tolerated} need no plugin, whoever wrote it",
            "let admission forbid that annotation outside of system namespaces",
        )
    return Finding("validator", Level.OK, "the default validator is on")


def cdi_by_name(facts: Facts) -> Finding:
    """Only where it is chosen."""
    settings, runtime = facts.settings, facts.runtime
    if not settings.cdi_by_name:
        return Finding("cdi-by-name", Level.OK, "not chosen: the agent applies the specs itself")
    problem = by_name.problem(runtime.name or "", runtime.version or "")
    if problem is not None:
        do = "start the agent without --cdi-by-name, or upgrade containerd"
        return Finding("cdi-by-name", Level.FAIL, problem, do)
    version = runtimes.parse(runtime.version or "")
    if version is not None and version < (2, 0, 0) and not runtime.cri.get("enable_cdi"):
        table = "[plugins.'io.containerd.grpc.v1.cri']"
        return Finding(
            "cdi-by-name",
            Level.FAIL,
            f"CDI is off in {runtime.config_file}",
            _lines(runtime, table, "enable_cdi = true"),
        )
    directories = runtime.cri.get("cdi_spec_dirs")
    # Where the cards' devices lie, and where the agent would generate one.
    files = (device.file for device in facts.specs.devices.values())
    ours = {str(settings.generated_cdi_dir), *map(posixpath.dirname, files)}
    if directories is not None and not {str(each) for each in directories} >= ours:
        return Finding(
            "cdi-by-name",
            Level.FAIL,
            f"containerd reads CDI specs in {', '.join(directories)}, the agent in"
            f" {', '.join(sorted(ours))}",
            "give the agent containerd's directories by --cdi-dir",
        )
    return Finding("cdi-by-name", Level.OK, "containerd applies CDI devices that the agent names")


def _unread(check: str, runtime: Runtime) -> Finding:
    return Finding(
        check,
        Level.WARN,
        f"the runtime's configuration is not known: {runtime.problem}",
        "run the doctor as root with hostPID, while containerd runs",
    )


def _turn_on(runtime: Runtime) -> str:
    return _lines(runtime, _NRI_TABLE, "disable = false")


def _lines(runtime: Runtime, table: str, *settings: str) -> str:
    """What to write, and where: the same table in every version of the file that we run on."""
    written = "\n".join((table, *(f"  {each}" for each in settings)))
    return f"in {runtime.config_file}, then restart containerd:\n{written}"


def _at_least(runtime: Runtime, first: Version) -> bool:
    """A version that is not known is taken for a new one: its configuration is there to be read."""
    found = runtimes.parse(runtime.version or "")
    return found is None or found >= first


def _has_hooks(facts: Facts, uuid: str) -> bool:
    device = facts.specs.devices.get(uuid)
    return device is not None and bool(device.own.hooks or device.common.hooks)


def handlers(runtime: Runtime) -> Mapping[str, Mapping[str, Any]]:
    """Runtime handlers by name, as containerd has them."""
    found = runtime.cri.get("containerd", {}).get("runtimes", {})
    return found if isinstance(found, Mapping) else {}


def default_handler(runtime: Runtime) -> str:
    return str(runtime.cri.get("containerd", {}).get("default_runtime_name", "runc"))


def state(facts: Facts) -> Finding:
    """Where the agent looks for containers, and where containerd has them."""
    path, config = str(facts.settings.containerd_state), facts.runtime.config
    if config is None:
        return _unread("containerd-state", facts.runtime)
    theirs = str(config.get("state") or bundle.STATES[0])
    if path != theirs:
        return Finding(
            "containerd-state",
            Level.FAIL,
            f"containerd's state is in {theirs}, the agent looks in {path}: containers with a share"
            " are refused at their start",
            f"give the agent --containerd-state {theirs}",
        )
    return Finding("containerd-state", Level.OK, path)


CHECKS: Final[Sequence[Any]] = (socket, version, state, nri, validator, cdi_by_name)
