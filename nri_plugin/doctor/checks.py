"""Checks of all but the container runtime: driver, CDI specs, library, kernel and so on. Pure.

CHECKS lists all checks in the order of output; docs/operations.md has the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuslice.contract import names
from nri_plugin.doctor import runtime_checks
from nri_plugin.doctor.facts import Answer, Facts, Finding, fail, ok, warn
from nri_plugin.host import selinux
from nri_plugin.host.nvidia_runtime import (
    ACCEPT_MOUNTS,
    ACCEPT_VARIABLES,
    OPERATORS_CONFIG,
    OTHER_VARIABLES,
)
from nri_plugin.policy import memory_limits as limits
from nri_plugin.policy import other_plugins
from nri_plugin.policy.nvidia import Toolkit
from nri_plugin.policy.other_plugins import Sign

_MIN_FREE_BYTES: Final = 8 << 20
_MIN_FREE_INODES: Final = 1000
_OURS: Final = ("nvidia.com/", "koordinator.sh/gpu")
"""Prefixes of the resources that allocate NVIDIA GPUs."""


def root(facts: Facts) -> Answer:
    if not facts.root:
        do = "run it as root: other checks are incomplete otherwise"
        return fail("the doctor does not run as root", do)
    if not facts.kernel.host_pids:
        in_talos = (
            "since Talos 1.14 pods have a PID namespace of their own, with hostPID too: set"
            " workloadIsolation: false in SecurityProfileConfig of the machine configuration"
        )
        return warn(
            "this is not the host's first PID namespace: NVML may name the processes of containers"
            " by other numbers than are seen here; the driver's own memory is not measured then",
            in_talos
            if facts.platform == "talos"
            else "set hostPID: true in the agent's pod, where it is not set; where it is, this"
            " node's pods have a PID namespace of their own",
        )
    return ok("root, in the host's PID namespace")


def library(facts: Facts) -> Answer:
    store = facts.settings.store_dir
    if facts.library_problem is not None:
        do = "set --library, or GPUSLICE_AGENT_LIBRARY: containers with a share are refused"
        return fail(facts.library_problem, do)
    if not facts.library_published:
        return warn(f"not in {store} yet", "the agent publishes it at its start")
    return ok(f"in {store}, as it is in {facts.settings.library}")


def driver(facts: Facts) -> Answer:
    if facts.gpus_problem is not None:
        return fail(
            f"NVML cannot list the GPUs: {facts.gpus_problem}",
            "check that nvidia-smi works on the host; if its driver is in another directory than"
            " these, set --driver-root",
        )
    if facts.failed_gpus:
        problems = "; ".join(f"{gpu.uuid}: {gpu.problem}" for gpu in facts.failed_gpus)
        answer = warn if facts.gpus else fail
        return answer(problems, "repair or exclude these GPUs; the agent shares the others")
    if not facts.gpus:
        do = "run the agent only on nodes with a GPU"
        return fail("the driver lists no GPU", do)
    gpus = ", ".join(f"{gpu.uuid} ({gpu.memory_bytes >> 20} MiB)" for gpu in facts.gpus)
    root = facts.driver_root
    below = "" if str(root) == "/" else f", below {root}"
    return ok(f"{gpus}; driver {facts.driver}{below}")


def memory_limits(facts: Facts) -> Answer:
    """Report which memory limits are in force."""
    chosen, lacks = facts.settings.memory_limits, facts.without_driver_limits
    text = limits.Limits(chosen, lacks).text.removeprefix("memory limits: ")
    if chosen is limits.MemoryLimits.DRIVER and lacks:
        return fail(text, "change that, or set --memory-limits to auto or library")
    return ok(text)


def cdi(facts: Facts) -> Sequence[Answer]:
    return [_cdi_of(facts, gpu.uuid) for gpu in facts.gpus]


def _cdi_of(facts: Facts, uuid: str) -> Answer:
    device = facts.specs.devices.get(uuid)
    file = device and facts.settings.on_host(device.file)
    directories = [facts.settings.on_host(each) for each in facts.settings.cdi_dirs]
    if device is None:
        unread = "".join(f"; unreadable: {problem}" for problem in facts.specs.problems)
        answer = warn if facts.settings.nvidia_ctk else fail
        return answer(
            f"{uuid} has no device of its name in {', '.join(map(str, directories))}, of kind"
            f" {' or '.join(facts.settings.cdi_kinds)}{unread}",
            "the agent generates it at its start where it can run nvidia-ctk; else: nvidia-ctk cdi"
            f" generate --device-name-strategy=uuid --output={directories[0]}/nvidia.yaml",
        )
    if device.problem is not None:
        do = (
            "correct the cause, and keep one file that describes the GPU; the agent uses a spec of"
            " its own instead where it can run nvidia-ctk"
        )
        return fail(f"{uuid} in {file}: {device.problem}", do)
    gone = facts.missing.get(uuid, ())
    if gone:
        return fail(
            f"{uuid} in {file} has hooks whose programs do not exist: {', '.join(gone[:3])}",
            "install NVIDIA's container toolkit again, or remove the file: the agent then generates"
            " a spec of its own",
        )
    return ok(f"{uuid} in {file}")


def nvidia_runtime(facts: Facts) -> Answer:
    """Check whether NVIDIA's runtime gives GPUs without limits to pods that only set a variable."""
    known = runtime_checks.handlers(facts.runtime)
    theirs = [name for name, table in known.items() if "nvidia" in str(table).lower()]
    default = runtime_checks.default_handler(facts.runtime)
    file, toolkit = facts.nvidia.file, facts.nvidia.toolkit
    if facts.runtime.config is None:
        theirs = ["unknown"] if toolkit is not None else []
    if not theirs and facts.runtime.config is None:
        finding = "neither containerd's configuration nor that of NVIDIA's toolkit is known"
        do = "run the doctor as root with hostPID, while containerd runs"
        return warn(finding, do)
    if not theirs:
        return ok("no runtime handler is NVIDIA's")
    toolkit = toolkit or Toolkit()
    by_variable, by_mount = toolkit.of_unprivileged, toolkit.of_mounts
    if not (by_variable or by_mount):
        finding = "NVIDIA's runtime ignores NVIDIA_VISIBLE_DEVICES of unprivileged pods"
        return ok(finding)
    is_default = default in theirs
    by_class = "" if is_default else f" whose RuntimeClass has the handler {', '.join(theirs)}"
    ways = ["its own NVIDIA_VISIBLE_DEVICES"] * by_variable + ["a volume mount"] * by_mount
    unread = f" ({facts.nvidia.problem})" if facts.nvidia.problem else ""
    finding = f"a pod{by_class} gets GPUs without a limit by {' or '.join(ways)}{unread}"
    if is_default and by_variable and toolkit.other_variables:
        return fail(finding, f"remove {OTHER_VARIABLES} from {file}")
    if is_default and by_variable:
        finding += ", where its image sets the variable too, or no agent ran when it was created"
    keys = [ACCEPT_VARIABLES] * by_variable + [ACCEPT_MOUNTS] * by_mount
    return warn(finding, _refuse(file, keys))


def _refuse(file: str, keys: Sequence[str]) -> str:
    """Return instructions that turn these settings of NVIDIA's toolkit off."""
    if file == str(OPERATORS_CONFIG):
        lines = ", ".join(f"{key.upper().replace('-', '_')}=false" for key in keys)
        return (
            f"in spec.toolkit.env of GPU Operator's ClusterPolicy: {lines}; or its cdi.enabled:"
            f" true (its toolkit rewrites {file})"
        )
    return "on the node: " + "; ".join(
        f"nvidia-ctk config --config-file={file} --in-place --set {key}=false" for key in keys
    )


def device_plugins(facts: Facts) -> Answer:
    seen = facts.plugins
    sockets = [name for name in seen.sockets if not name.endswith(names.DEVICE_PLUGIN_SOCKET)]
    agents = bool(facts.settings.whole_gpus) and sockets != [*seen.sockets]
    theirs = [name for name in sockets if "nvidia" in name.lower() or "gpu" in name.lower()]
    ours = {names.RESOURCE_NVIDIA_GPU} if agents and not theirs else set()
    uuids = tuple(gpu.uuid for gpu in facts.gpus)
    # The device ID of a time slice or an MPS share is the UUID with a suffix.
    offering = [
        resource
        for resource, ids in seen.registered.items()
        if ids and resource not in ours
        if resource.startswith(_OURS) or any(each.startswith(uuids) for each in ids)
    ]
    holding = [
        f"container {container} of pod {pod}"
        for pod, container, resource in seen.allocated
        if resource not in ours and (resource.startswith(_OURS) or resource in offering)
    ]
    node = facts.settings.node_name
    do = other_plugins.advice(seen.signs or [Sign("a device plugin")], node, seen.operator)
    dra = next((sign.text for sign in seen.signs if sign.is_dra), "")
    if dra:
        return fail(f"{dra}: which GPUs its claims hold is not known here", do)
    if offering or holding:
        what = [f"a device plugin offers {', '.join(offering)}"] if offering else []
        what += [f"{', '.join(holding[:3])} got a GPU from it"] if holding else []
        return fail("; ".join(what), do)
    if theirs:
        idle = seen.problem or "they offer nothing now"
        return warn(f"sockets of other plugins for GPUs: {', '.join(theirs)}; {idle}", do)
    if seen.problem is not None:
        do = "check by kubectl describe node that no nvidia.com/ resource is offered"
        return warn(seen.problem, do)
    offered = f"; the agent offers {names.RESOURCE_NVIDIA_GPU}" if ours else ""
    return ok(f"no other plugin offers these GPUs{offered}")


def run_dir(facts: Facts) -> Answer:
    path, seen = facts.settings.run_dir, facts.run_dir
    if seen.problem is not None:
        return fail(seen.problem, "set --run-dir to an existing directory")
    if seen.free_bytes < _MIN_FREE_BYTES or seen.free_inodes < _MIN_FREE_INODES:
        return fail(
            f"{path}: {seen.free_bytes >> 10} KiB and {seen.free_inodes} inodes free: must be at"
            f" least {_MIN_FREE_BYTES >> 10} KiB and {_MIN_FREE_INODES}",
            "free space in its file system (/run), or mount a larger one",
        )
    if seen.open_to:
        return fail(
            f"{path}: {seen.open_to}: must be the agent's user and mode 700, since every user of"
            " this host could write the containers' counters otherwise",
            f"chown and chmod 700 {path}; the agent sets the mode at its start",
        )
    if not seen.propagates:
        return fail(
            f"{path}: what the agent mounts here stays in its pod: containers with a share do not"
            " start",
            f"mount {path} with mountPropagation: Bidirectional",
        )
    if not seen.tmpfs:
        return warn(
            f"{path} is not on a tmpfs: its files remain after a reboot, and are removed then",
            "set --run-dir to a directory below /run",
        )
    return ok(f"{path}, on a tmpfs with {seen.free_bytes >> 20} MiB free")


def kernel(facts: Facts) -> Answer:
    seen = facts.kernel
    if seen.lacks:
        lacking = "; ".join(f"{name}, for {what}" for name, what in seen.lacks.items())
        do = "run a newer kernel, or check which seccomp profile forbids it"
        return fail(f"{seen.release} does not offer {lacking}", do)
    return ok(seen.release)


def dev_char(facts: Facts) -> Answer:
    """Check the links in /dev/char, by which systemd's cgroup driver allows devices. Without a
    link, `systemctl daemon-reload` removes the device from running containers."""
    seen = facts.dev_char
    if not seen.nodes:
        return ok("there are no device nodes of the driver")
    if not seen.lacking:
        return ok(f"has links for the driver's {len(seen.nodes)} device nodes")
    if runtime_checks.cgroup_driver(facts.runtime) == "cgroupfs":
        return ok("lacks links for the driver, which the cgroup driver cgroupfs does not need")
    root = facts.driver_root
    more = f" --driver-root={root}" if str(root) != "/" else ""
    return warn(
        f"has no link for {', '.join(seen.lacking[:3])}: with systemd's cgroup driver, containers"
        " lose their GPU at the next systemctl daemon-reload",
        f"at each boot, after the driver is loaded: nvidia-ctk system create-dev-char-symlinks"
        f" --create-all{more}",
    )


def security_modules(facts: Facts) -> Answer:
    if facts.selinux:
        if facts.runtime.cri.get("enable_selinux") is False:
            return ok("SELinux is enforcing; containerd does not label containers (enable_selinux)")
        labels = f"SELinux is enforcing; the agent labels its files {selinux.LABEL}"
        if facts.agent.ready:
            return ok(f"{labels}, and the policy lets containers use them")
        return warn(
            f"{labels}; whether the policy lets containers use them is what the agent says",
            f"see the agent's /readyz; {selinux.DO}",
        )
    if facts.apparmor:
        return ok("AppArmor: containerd's default profile allows the agent's files")
    return ok("neither SELinux is enforcing nor AppArmor enabled")


def dialects(facts: Facts) -> Answer:
    """Report the dialects that are on. The scheduler refuses pods of other dialects."""
    on = ", ".join(each.name for each in facts.settings.dialects)
    return ok(f"{on}; the node reports {', '.join(facts.settings.node_resources)}")


def agent(facts: Facts) -> Answer:
    """Evaluate what the running agent reports at /readyz."""
    seen = facts.agent
    if seen.ready is None:
        do = "start it: python -m nri_plugin"
        return warn(f"it does not respond: {seen.problem}", do)
    if not seen.ready:
        return fail(f"not ready: {seen.text}", "see the checks above")
    return ok("ready")


Check = Callable[[Facts], Answer | Sequence[Answer]]

CHECKS: Final[Mapping[str, Check]] = {
    "root": root,
    **runtime_checks.CHECKS,
    "library": library,
    "driver": driver,
    "memory-limits": memory_limits,
    "cdi": cdi,
    "nvidia-runtime": nvidia_runtime,
    "device-plugins": device_plugins,
    "run-dir": run_dir,
    "kernel": kernel,
    "dev-char": dev_char,
    "security-modules": security_modules,
    "dialects": dialects,
    "agent": agent,
}


def examine(facts: Facts) -> Sequence[Finding]:
    """Return the findings of all checks, in the order of CHECKS."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        result = check(facts)
        answers = [result] if isinstance(result, tuple) else result
        findings += [Finding(name, *answer) for answer in answers]
    return findings
