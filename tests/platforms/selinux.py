"""SELinux on a kernel without it: mounted as sitecustomize.py into the agent's container.

The host has selinuxfs' files and an OCI runtime that labels containers (`lay`). In the agent's
process this module replaces what only the kernel can do: the option `context` of a mount, the label
of a file, and whether a domain may use a label. A file of a tmpfs has the label of its mount. The
policy is that of container-selinux, or Bottlerocket's.

Source: Linux, security/selinux/hooks.c and selinuxfs.c; container-selinux, container.te;
bottlerocket-core-kit packages/selinux-policy.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lab.node.namespace import Namespace

INSIDE: Final = "/emulated"
VARIABLE: Final = "EMULATED_SELINUX"
CONTAINERS: Final = "container-selinux"
BOTTLEROCKET: Final = "bottlerocket"
_XATTR: Final = "security.selinux"
_DENIED: Final = {CONTAINERS: ("tmpfs_t", "var_run_t"), BOTTLEROCKET: ("secret_t",)}
"""Types of files that containers may not use."""
_MEMORY: Final = {CONTAINERS: "tmpfs_t", BOTTLEROCKET: "any_t"}
"""The SELinux type of a tmpfs' file that has no label of its own."""
_CONTEXT: Final = re.compile(rb',context="([^"]*)"')
_INODES: Final = re.compile(rb"(?<=nr_inodes=)[0-9]+")
_ALL: Final = "ffffffff"
_RUNC: Final = """\
#!/bin/sh
# Run runc as on a kernel with SELinux: its containers have the label that containerd chose, but
# those of a privileged pod have none.
/usr/sbin/runc "$@" || exit
case " $* " in *" create "*) ;; *) exit 0 ;; esac
while [ "$1" != --bundle ]; do shift; done
label='"selinuxLabel":"system_u:system_r:container_t:s0:c1,c2"'
grep -q gpuslice-agent "$2/config.json" ||
  sed -i '0,/"process":{/s//"process":{'"$label"',/' "$2/config.json"
"""


def lay(namespace: Namespace) -> None:
    """Make the host's part: selinuxfs' files and the OCI runtime. Raises NamespaceError."""
    made = namespace.directory / "sys-fs"
    files = made / "selinux"
    for kind, (index, permissions) in _CLASSES.items():
        (files / "class" / kind / "perms").mkdir(parents=True)
        (files / "class" / kind / "index").write_text(str(index))
        for number, name in enumerate(permissions, 1):
            (files / "class" / kind / "perms" / name).write_text(str(number))
    (files / "enforce").write_text("1")
    (files / "access").touch()
    (made / "cgroup").mkdir()
    namespace.mount("--rbind", "/sys/fs/cgroup", made / "cgroup")
    namespace.mount("--rbind", made, "/sys/fs")
    namespace.write(Path("/usr/local/sbin/runc"), _RUNC, 0o755)
    emulated = namespace.directory / "emulated"
    emulated.mkdir()
    (emulated / "sitecustomize.py").write_text(Path(__file__).read_text())
    (emulated / "filesystems").write_text("nodev\ttmpfs\nnodev\tselinuxfs\n")


_CLASSES: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "file": (7, ("open", "read", "getattr", "map", "execute", "write")),
    "dir": (8, ("search", "read", "open")),
}


class _Kernel:
    """Replaces libc's mount and umount2. mount stores a tmpfs' label as an extended attribute."""

    def __init__(self, libc: Any, ffi: Any, policy: str) -> None:
        self._libc, self._ffi, self._policy = libc, ffi, policy

    def mount(self, source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> int:
        label = _CONTEXT.search(options or b"")
        if label is not None and self._policy == BOTTLEROCKET:
            self._ffi.errno = errno.EINVAL  # Bottlerocket's policy has no such type
            return -1
        # A tmpfs counts an extended attribute as an inode.
        plain = _INODES.sub(lambda found: b"%d" % (int(found[0]) + 1), _CONTEXT.sub(b"", options))
        done: int = self._libc.mount(source, target, kind, flags, plain)
        if done == 0 and label is not None:
            os.setxattr(target, _XATTR, label[1] + b"\0")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._libc, name)


def _label(path: str | Path, policy: str) -> str:
    """Return the label of the file, of the nearest directory that has a label, or a default."""
    place = Path(os.path.realpath(path))
    for each in (place, *place.parents):
        try:
            return _getxattr(each, _XATTR).rstrip(b"\0").decode()
        except OSError:
            continue
    kind = _MEMORY[policy] if str(place).startswith(("/run", "/host/run")) else "lib_t"
    return f"system_u:object_r:{kind}:s0"


def _install(policy: str) -> None:
    from gpuslice.ffi import libc
    from nri_plugin.host import selinux

    def access(_: Path, question: str) -> str:
        kind = question.split()[1].split(":")[2]
        return f"{'0' if kind in _DENIED[policy] else _ALL} {_ALL} 0 {_ALL} 1 0"

    def getxattr(path: Any, name: str, **more: Any) -> bytes:
        if name != _XATTR:
            return _getxattr(path, name, **more)
        return f"{_label(path, policy)}\0".encode()

    os.getxattr = getxattr  # type: ignore[assignment]
    libc.LIBC = _Kernel(libc.LIBC, libc.ffi, policy)  # type: ignore[misc]
    selinux.label.__defaults__ = (Path(INSIDE, "filesystems"),)
    *others, _ = selinux.Policy.__init__.__defaults__ or ()
    selinux.Policy.__init__.__defaults__ = (*others, access)


_getxattr = os.getxattr
if __name__ == "sitecustomize" and sys.orig_argv[1:3] == ["-m", "nri_plugin"]:
    _install(os.environ[VARIABLE])
