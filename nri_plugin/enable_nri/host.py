"""The host as the init container sees it: its files below a mount, its programs in its namespaces.

containerd is found by the socket at which it listens, so that a second one, such as Docker's, is
not mistaken for it. Whether a socket is listened at is read from the kernel's table: a connection
to NRI's socket that registers no plugin delays every plugin by seconds.
"""

from __future__ import annotations

import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu.driver_root import resolve
from nri_plugin.doctor import containerd
from nri_plugin.host.host_command import in_namespaces

SOCKET: Final = "/run/containerd/containerd.sock"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLL_S: Final = 0.1
_GENERATED: Final = {
    "/var/lib/rancher/k3s/agent/etc/containerd": ("k3s", "config.toml.tmpl there", "k3s"),
    "/var/lib/rancher/rke2/agent/etc/containerd": ("RKE2", "config.toml.tmpl there", "rke2"),
    "/var/snap/microk8s/current/args": ("MicroK8s", "containerd-template.toml there", "microk8s"),
}
"""Distributions that write containerd's configuration at each start, from a template."""


class HostError(Exception):
    """The host does not allow it; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Host:
    """root: the host's root directory as seen here; / if this process runs on the host."""

    root: Path

    def path(self, path: Path) -> Path:
        """Return where the host's file is seen here, with links followed. Raises OSError."""
        return resolve(self.root, str(path))

    def run(self, command: Sequence[str], timeout_s: float) -> str:
        """Run a command in the host's namespaces. Returns why it failed; "": it did not."""
        try:
            done = subprocess.run(
                command if self.root == Path("/") else in_namespaces(command),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env={"PATH": _PATH},
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            return f"{command[0]} took longer than {timeout_s:g} s"
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{command[0]}: exit status {done.returncode}: {last}" if done.returncode else ""

    def generated_by(self, config: Path) -> str:
        """Return what to do if a distribution generates that file or its kind; "": none does."""
        for directory, (name, template, unit) in _GENERATED.items():
            seen = self.path(Path(directory)).is_dir() and not self.path(config).is_file()
            if seen or config.is_relative_to(directory):
                return (
                    f"{name} generates containerd's configuration in {directory} at its start:"
                    f" set disable = false in [plugins.'io.containerd.nri.v1.nri'] of"
                    f" {template}, and restart {unit}; containerd 2 has NRI on by default"
                )
        return ""


@dataclass(frozen=True, slots=True)
class Containerd:
    """The running containerd that listens at `socket`, with the configuration file `config`."""

    process: containerd.Process
    config: Path
    socket: Path

    def effective(self, config_exists: bool) -> Mapping[str, Any]:
        """Return the configuration with which it would start now. Raises HostError."""
        # containerd 1.7 cannot dump a configuration without a file.
        words = ("dump",) if config_exists else ("default",)
        try:
            dumped = containerd.run(self.process, "--config", str(self.config), "config", *words)
            return tomllib.loads(dumped)
        except (containerd.CommandError, tomllib.TOMLDecodeError) as error:
            raise HostError(f"containerd config {words[0]}: {error}") from error


def find(host: Host, config: Path) -> Containerd:
    """Return the running containerd. Raises HostError and OSError."""
    if generated := host.generated_by(config):
        raise HostError(generated)
    socket = socket_of(host, config)
    process = containerd.listener(socket)
    if process is None:
        raise HostError(
            f"no process listens at {socket}: containerd must run, and this process needs root and"
            " hostPID"
        )
    named = Path(containerd.config_of(process.argv))
    if named != config:
        raise HostError(
            f"--containerd-config: invalid value {config}: the running containerd uses {named}"
        )
    return Containerd(process, config, socket)


def socket_of(host: Host, config: Path) -> Path:
    """Return the socket that the main file configures, or containerd's default."""
    try:
        known = tomllib.loads(host.path(config).read_text())
    except (OSError, ValueError):
        known = {}
    tables = (
        known.get("grpc", {}),
        known.get("plugins", {}).get("io.containerd.server.v1.grpc", {}),
    )
    return Path(next((table["address"] for table in tables if table.get("address")), SOCKET))


def wait(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether it holds within that time."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True
