"""The driver root with two paths: the host's, which the runtime gets, and the agent's.

GPU Operator's driver container installs the driver below /run/nvidia/driver. Usually the root is /.
In a pod the agent sees the root at another path than the host. CDI specs contain the host's paths:
this module converts between the two, and gives nvidia-ctk the options to generate such a spec.
Blocks: call it from a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuslice.gpu.driver_root import locate, resolve
from nri_plugin.child import in_root
from nri_plugin.host import releases
from nri_plugin.policy.nvidia import CONTROL_NODES

_ROOT: Final = Path("/")
_VERSION_S: Final = 1.0
"""Timeout of a program's --version. It is less than the worker's deadline."""
_HOOKS: Final = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)
"""The host's paths at which packages and GPU Operator install the program of a spec's hooks, which
runc executes on the host."""
COPIED: Final = ("nvidia-cdi-hook", "nvidia-ctk")
"""Possible names of the agent's own copy of the hooks' program."""
_MODULES: Final = ("nvidia", "nvidia-uvm")
_CONTAINERS_OWN: Final = ("createContainer", "startContainer")
"""Kinds of hooks whose arguments are paths in the container, not on the host."""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """host: the driver root's path on the host. mount: the path at which the agent sees the driver
    root. root: the path at which the agent sees the host's root directory."""

    host: Path = _ROOT
    mount: Path = _ROOT
    root: Path = _ROOT

    def seen(self, path: str) -> Path:
        """Return the path at which the agent sees the host's file `path`, with links resolved as on
        the host. The file need not exist. Raises OSError."""
        if self.mount != self.host and Path(path).is_relative_to(self.host):
            return resolve(self.mount, f"/{Path(path).relative_to(self.host)}")
        return Path(path) if self.root == _ROOT else resolve(self.root, path)

    def stat(self, path: str) -> os.stat_result:
        """Return the status of the host's file `path`. Raises OSError."""
        return os.stat(self.seen(path))

    def on_host(self, path: str) -> str:
        """Return the host's path of a file that the agent sees at `path`, below `mount` or `root`.
        Other paths are returned unchanged."""
        if self.mount == self.host:
            return path
        for seen, there in ((self.mount, self.host), (self.root, _ROOT)):
            if seen != _ROOT and Path(path).is_relative_to(seen):
                return str(there / Path(path).relative_to(seen))
        return path

    @property
    def dev_root(self) -> Path:
        """Return the directory whose dev/ has the driver's device nodes. A driver container may
        have its own device nodes, or use the host's."""
        own_nodes = (self.mount / "dev/nvidiactl").exists()
        return self.mount if own_nodes or self.host == _ROOT else self.root

    def options(self, hook: str) -> Sequence[str]:
        """Return nvidia-ctk's options for this root. hook: the host's path of the hooks' program;
        "": nvidia-ctk's default."""
        roots = (f"--driver-root={self.mount}", f"--dev-root={self.dev_root}")
        return (*roots, f"--nvidia-cdi-hook-path={hook}") if hook else roots

    def node_commands(self, ctk: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return the commands that load the driver's modules and create the control device nodes,
        as NVIDIA's unit nvidia-cdi-refresh.service does. Return no commands if all these nodes
        exist, or if nvidia-ctk is not installed. modprobe runs separately, because nvidia-ctk would
        load the modules by a chroot program, which the agent's image lacks.
        """
        nodes = (self.dev_root / node[1:] for node in CONTROL_NODES)
        if all(node.exists() for node in nodes) or shutil.which(ctk[0]) is None:
            return ()
        create = ("system", "create-device-nodes", "--control-devices")
        return (
            in_root(self.mount, ("/sbin/modprobe", "-a", *_MODULES)),
            (*ctk, *create, f"--driver-root={self.mount}", f"--dev-root={self.dev_root}"),
        )

    def hook(self, command: Sequence[str], directory: Path) -> str:
        """Return the host's path of the program for a spec's hooks; "": no program is found.

        The agent's own program is copied into `directory`, which has the same path on the host. It
        is preferred because a toolkit of the host may be older than our nvidia-ctk, and then lacks
        hooks. If our program does not run on the host, because of an old libc, the host's program
        is used. Raises OSError and StoreError.
        """
        ours = shutil.which("nvidia-cdi-hook") or shutil.which(command[0])
        if ours:
            copy, data = directory / Path(ours).name, Path(ours).read_bytes()
            if not releases.holds(copy, data):
                with releases.locked(directory):
                    releases.replace(copy, data)
            if _runs(self.root, copy):
                return str(copy)
        for path in _HOOKS:
            with contextlib.suppress(OSError):
                if os.access(resolve(self.root, path), os.X_OK):
                    return path
        return ""

    def translate(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the spec with the host's paths, as `nvidia-ctk cdi transform root` does. Values
        that violate the format stay unchanged: cdi_reader.py reports them."""
        devices = [self._translate_edits(each) for each in spec.get("devices") or ()]
        return {**self._translate_edits(spec), "devices": devices}

    def _translate_edits(self, parent: dict[str, Any]) -> dict[str, Any]:
        edits = parent.get("containerEdits")
        if self.mount == self.host or not isinstance(edits, dict):
            return parent
        changed = dict(edits)
        for key in ("deviceNodes", "mounts", "hooks"):
            if isinstance(edits.get(key), list):
                changed[key] = [self._translate_entry(key, each) for each in edits[key]]
        return {**parent, "containerEdits": changed}

    def _translate_entry(self, key: str, entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        if key != "hooks":
            path = entry.get("hostPath") or (entry.get("path") if key == "deviceNodes" else None)
            return {**entry, "hostPath": self.on_host(path)} if isinstance(path, str) else entry
        changed = dict(entry)
        name, path, args = (entry.get(each) for each in ("hookName", "path", "args"))
        if isinstance(path, str) and name != "startContainer":
            changed["path"] = self.on_host(path)
        if isinstance(args, list) and name not in _CONTAINERS_OWN:
            changed["args"] = [self._translate_argument(each) for each in args]
        return changed

    def _translate_argument(self, argument: Any) -> Any:
        """Convert the paths in a hook's argument. The value of --link has two: TARGET::LINK."""
        if not isinstance(argument, str):
            return argument
        return "::".join(map(self.on_host, argument.split("::")))


def find(host: Path, chosen: Path | None, earlier: DriverRoot | None = None) -> DriverRoot:
    """Return the current driver root. host: path at which the agent sees the host's root directory.
    chosen: the operator's choice; None: search for the driver. If none is found, for example while
    a driver container restarts, return the root of `earlier`, or / without `earlier`.
    """
    root = chosen or locate(host) or (earlier.host if earlier else _ROOT)
    try:
        return DriverRoot(root, resolve(host, str(root)), host)
    except OSError:
        return DriverRoot(root, host / root.relative_to(_ROOT), host)


WITHOUT_MOUNT: Final = DriverRoot()
"""The root if both the agent and the driver are installed directly on the host."""


def _runs(host: Path, program: Path) -> bool:
    """Return whether the program runs with the libraries of the host."""
    command = in_root(host, (str(program), "--version"))
    try:
        done = subprocess.run(command, capture_output=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
