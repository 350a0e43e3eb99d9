"""SELinux: the label of the agent's files, and whether containers may use files with a label.

A container that may not read /etc/ld.so.preload runs without its limit. So the agent mounts its
file systems with a label that containers may use. Policies differ (Bottlerocket's lets containers
use all files in memory). Therefore the agent also asks the kernel whether a container may use the
files. containerd writes a container's label into its bundle. A container without a label is
unconfined. Blocks.
Source: containerd's internal/cri/server (sandbox_run_linux.go); Linux, security/selinux/hooks.c
(the option `context`) and selinuxfs.c (`access`, `class`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nri_plugin.host import bundle
from nri_plugin.host.descriptors import opened

LABEL: Final = "system_u:object_r:container_file_t:s0"
DO: Final = (
    "install the package container-selinux, whose policy has the type container_file_t, or set"
    " SELinux to permissive on nodes whose GPUs are shared"
)
READ: Final = frozenset({"open", "read", "getattr"})
EXECUTE: Final = READ | {"map", "execute"}
WRITE: Final = READ | {"map", "write"}
"""Permissions that a process needs: READ for its grant, EXECUTE for the library, WRITE for its
region."""

_FILES: Final = "sys/fs/selinux"
_ENFORCING: Final = "1"
_PERMISSIVE_DOMAIN: Final = 1
_ANSWER_BYTES: Final = 4096
_XATTR: Final = "security.selinux"
_SYSTEMS: Final = Path("/proc/filesystems")


def label(systems: Path = _SYSTEMS) -> str:
    """Return the label for our files; "" on a kernel that runs without SELinux."""
    return LABEL if "selinuxfs" in systems.read_text().split() else ""


def enforcing(host: Path) -> bool:
    try:
        return (host / _FILES / "enforce").read_text().strip() == _ENFORCING
    except OSError:
        return False


def label_of(path: str | Path) -> str:
    return os.getxattr(path, _XATTR).rstrip(b"\0").decode(errors="replace")


def _ask(path: Path, question: str) -> str:
    """Write a question to a file of selinuxfs, and read the answer from the same descriptor."""
    with opened(path, os.O_RDWR) as descriptor:
        os.write(descriptor, question.encode())
        return os.pread(descriptor, _ANSWER_BYTES, 0).decode()


@dataclass(frozen=True, slots=True)
class Policy:
    """The kernel's policy. host: path at which this process sees the host's root directory."""

    host: Path
    ask: Callable[[Path, str], str] = _ask

    def objection(
        self, subject: str, target: str, wanted: AbstractSet[str], kind: str = "file"
    ) -> str:
        """Return why a process may not use a file; "": it may. subject: the process's label.
        target: the file's label. If the kernel does not answer, return this as the reason."""
        if not subject or not enforcing(self.host):
            return ""
        try:
            denied = self._denied(subject, target, wanted, kind)
        except (OSError, ValueError, IndexError) as error:
            return f"SELinux is enforcing, and its policy cannot be read: {error!r}"
        if not denied:
            return ""
        return (
            f"SELinux does not let {subject} {', '.join(sorted(denied))} a {kind} of {target}:"
            f" a container that cannot use the agent's files runs without its limit; {DO}"
        )

    def _denied(
        self, subject: str, target: str, wanted: AbstractSet[str], kind: str
    ) -> AbstractSet[str]:
        files = self.host / _FILES
        index = (files / "class" / kind / "index").read_text().strip()
        answer = self.ask(files / "access", f"{subject} {target} {index}").split()
        allowed, flags = int(answer[0], 16), int(answer[5], 16)
        if flags & _PERMISSIVE_DOMAIN:
            return frozenset()
        permissions = files / "class" / kind / "perms"
        return {each for each in wanted if not allowed & _bit(permissions / each)}


def _bit(permission: Path) -> int:
    """Return the permission's bit, or all bits if an older policy does not know the permission."""
    try:
        return 1 << (int(permission.read_text()) - 1)
    except FileNotFoundError:
        return ~0


def problem(
    containerd_state: Path,
    sandbox_ids: Iterable[str],
    files_label: Callable[[], str],
    policy: Policy,
) -> str | None:
    """Return why containers of these sandboxes cannot have shares; "" if they can; None if no
    sandbox has a label. For example, a privileged pod's sandbox has none.

    files_label: returns the label that a container's new files get, or raises OSError.
    """
    labels = {_label(containerd_state, each) for each in sandbox_ids} - {""}
    if not labels:
        return None
    try:
        target = files_label()
    except OSError as error:
        return f"SELinux labels containers, and the agent's files have no label: {error!r}"
    for each in sorted(labels):
        for wanted, kind in ((EXECUTE | WRITE, "file"), ({"search"}, "dir")):
            objection = policy.objection(each, target, wanted, kind)
            if objection:
                return objection
    return ""


def _label(containerd_state: Path, sandbox_id: str) -> str:
    try:
        return bundle.config(bundle.directory(containerd_state, sandbox_id)).selinux_label
    except OSError:
        return ""
