"""Checks of the host's device files and security modules, and what the node offers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from nri_plugin.doctor import runtime_checks
from nri_plugin.doctor.facts import Answer, Facts, ok, warn
from nri_plugin.host import selinux


def dev_char(facts: Facts) -> Answer:
    """runc with systemd's cgroup driver allows a device by its link in /dev/char; without one,
    `systemctl daemon-reload` takes the device from running containers."""
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
    """Information: a pod in a dialect that is off is the scheduler's to refuse."""
    on = ", ".join(each.name for each in facts.settings.dialects)
    return ok(f"{on}; the node reports {', '.join(facts.settings.node_resources)}")


CHECKS: Final[Mapping[str, Callable[[Facts], Answer]]] = {
    "dev-char": dev_char,
    "security-modules": security_modules,
    "dialects": dialects,
}
