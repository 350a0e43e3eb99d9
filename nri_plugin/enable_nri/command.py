"""The command: flags and the order of the steps. Exit status 1, with the reason, if NRI is off."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nri_plugin import setting_types
from nri_plugin.doctor import containerd
from nri_plugin.enable_nri import change, edits
from nri_plugin.enable_nri.change import Files, Journal, Record, State
from nri_plugin.enable_nri.host import Containerd, Host, HostError, find, socket_of, wait

_DESCRIPTION: Final = """\
Turns NRI on in this host's containerd, which the agent needs. Turns on NRI's default validator too,
where containerd has one, so that pods with a share wait while no agent runs. The command changes
nothing where both are on. Otherwise it writes a drop-in, runs containerd's check of its
configuration, restarts containerd, and waits for containerd's sockets. If the sockets are missing
afterwards, the command restores every file and restarts containerd again. Containers keep running
while containerd restarts. Run it in a privileged init container with hostPID and the host's root at
/host.
"""
_EPILOG: Final = """\
A run that was killed is repaired by the next one. A configuration that did not work is not tried
again: the reason stays in .gpuslice-enable-nri.json beside containerd's configuration, until that
file is removed, or the configuration or containerd changes.

examples:
  python -m nri_plugin enable-nri --dry-run
  python -m nri_plugin enable-nri --host-root / --restart 'service containerd restart'
"""
_DROP_IN: Final = "gpuslice-nri.toml"
_DROP_INS: Final = "conf.d/*.toml"
_NRI_SOCKET: Final = "/var/run/nri/nri.sock"
_Error = (edits.EditError, HostError, change.BusyError, containerd.CommandError, OSError)


def main(arguments: Sequence[str]) -> int:
    given = parser().parse_args(arguments)
    host = Host(given.host_root)
    step = _Step(host, given.containerd_config, given.restart, given.timeout)
    try:
        with change.locked(host.path(given.containerd_config.parent)):
            outcome = step.undo() if given.undo else step.enable(given.dry_run)
    except _Error as error:
        sys.stderr.write(f"enable-nri: {error}\n")
        return 1
    sys.stdout.write(outcome + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(
        prog="python -m nri_plugin enable-nri",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    path: Mapping[str, Any] = {"type": setting_types.absolute, "metavar": "PATH"}
    known.add_argument(
        "--host-root", **path, default=Path("/host"), help="the host's root (default: /host)"
    )
    known.add_argument(
        "--containerd-config",
        **path,
        default=Path("/etc/containerd/config.toml"),
        help="containerd's configuration on the host (default: /etc/containerd/config.toml)",
    )
    known.add_argument(
        "--restart",
        type=setting_types.command,
        default="systemctl restart containerd",
        metavar="COMMAND",
        help="restarts containerd, run on the host; off: print what to do, and fail"
        " (default: systemctl restart containerd)",
    )
    known.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for the restart, and for the sockets after it (default: 60)",
    )
    known.add_argument("--dry-run", action="store_true", help="print what would be done")
    known.add_argument(
        "--undo", action="store_true", help="restore what an earlier run changed, and restart"
    )
    return known


@dataclass(frozen=True, slots=True)
class _Step:
    host: Host
    config: Path
    restart: Sequence[str]
    timeout_s: float

    @property
    def journal(self) -> Journal:
        return Journal(self.host.path(self.config.parent))

    def enable(self, dry_run: bool) -> str:
        record = self.journal.read()
        if record is not None and record.state is State.CHANGING:
            if dry_run:
                return "would first restore the files of an interrupted run"
            self._repair(record)
        found = find(self.host, self.config)
        effective = self._effective(found)
        if not edits.table(effective):
            raise HostError("this containerd has no NRI: upgrade to 1.7.26 or later")
        if edits.is_on(effective) and _listens(_socket(effective)):
            return f"NRI is on: containerd listens at {_socket(effective)}; nothing was changed"
        after = {} if edits.is_on(effective) else self._wanted(effective)
        before = {path: change.read(path) for path in after}
        version = containerd.run(found.process, "--version").strip()
        key = change.key_of({**before, self._main: change.read(self._main)}, version)
        if record is not None and record.state is State.FAILED and record.key == key:
            raise HostError(
                f"an earlier run failed, and is not repeated for the same configuration:"
                f" {record.reason}; remove {self.journal.file} to try again"
            )
        if dry_run or not self.restart:
            plan = self._plan(after)
            if dry_run:
                return plan
            raise HostError(f"--restart is off; turn NRI on by hand:\n{plan}")
        self._needs_restart_command()
        return self._change(
            found,
            effective,
            Record(State.CHANGING, before, after, change.new_directories(after), key),
        )

    def undo(self) -> str:
        record = self.journal.read()
        if record is None or record.state is not State.DONE:
            return "nothing to undo"
        self._needs_restart_command()
        self.journal.write(replace(record, state=State.CHANGING))
        record.revert()
        self._restarted()
        self.journal.clear()
        record.remove_directories()
        return "containerd runs with its earlier configuration again"

    @property
    def _main(self) -> Path:
        return self.host.path(self.config)

    def _effective(self, found: Containerd) -> Mapping[str, Any]:
        return found.effective(self._main.is_file())

    def _wanted(self, effective: Mapping[str, Any]) -> Files:
        """Return the drop-in, and the main file if it imports no drop-ins yet."""
        main = change.read(self._main)
        text = (main or b"").decode()
        imports = edits.parsed(text).get("imports", [])
        patterns = [Path(each) for each in imports if each.endswith("/*.toml")]
        pattern = patterns[0] if patterns else self.config.parent / _DROP_INS
        drop_in = self.host.path(self.config.parent / pattern.parent) / _DROP_IN
        if main is None:
            text = f"version = {effective['version']}\n"
        imported = text if patterns else edits.with_import(text, str(pattern))
        files: dict[Path, bytes | None] = {drop_in: edits.drop_in(effective).encode()}
        return files if patterns else {**files, self._main: imported.encode()}

    def _plan(self, after: Files) -> str:
        lines = [f"write {path}:\n{(data or b'').decode()}" for path, data in after.items()]
        command = shlex.join(self.restart) if self.restart else "by your service manager"
        return "\n".join((*lines, f"restart containerd: {command}"))

    def _needs_restart_command(self) -> None:
        systemd = self.host.path(Path("/run/systemd/system"))
        if not self.restart:
            raise HostError("--restart: invalid value off: must be a command")
        if self.restart[0] == "systemctl" and not systemd.is_dir():
            raise HostError(
                "--restart: invalid value systemctl: this host does not run systemd; give the"
                " command that restarts containerd, or off"
            )

    def _change(self, found: Containerd, earlier: Mapping[str, Any], record: Record) -> str:
        self.journal.write(record)
        try:
            record.apply()
            problem = edits.difference(earlier, found.effective(True)) if record.after else ""
        except (HostError, OSError) as error:
            problem = str(error)
        if problem:
            record.revert()
            self.journal.write(replace(record, state=State.FAILED, reason=problem))
            raise HostError(f"{problem}; every file is as before, and containerd was not restarted")
        nri = _socket(earlier)
        problem = self.host.run(self.restart, self.timeout_s)
        if not problem and not wait(
            lambda: _listens(nri) and _listens(found.socket), self.timeout_s
        ):
            problem = f"containerd does not listen at {nri} {self.timeout_s:g} s after its restart"
        if problem:
            record.revert()
            self._restarted(f"{problem}; every file is as before, and ")
            self.journal.write(replace(record, state=State.FAILED, reason=problem))
            raise HostError(f"{problem}; containerd runs with its earlier configuration again")
        self.journal.write(replace(record, state=State.DONE))
        return f"NRI is on now: containerd listens at {nri}"

    def _repair(self, record: Record) -> None:
        """Complete an interrupted run that had succeeded; restore the files of any other."""
        with contextlib.suppress(HostError):
            effective = self._effective(find(self.host, self.config))
            if edits.is_on(effective) and _listens(_socket(effective)):
                self.journal.write(replace(record, state=State.DONE))
                return
        record.revert()
        if not _listens(socket_of(self.host, self.config)):
            self._restarted()
        self.journal.clear()

    def _restarted(self, context: str = "") -> None:
        """Restart containerd with its earlier configuration. Raises HostError."""
        socket = socket_of(self.host, self.config)
        problem = self.host.run(self.restart, self.timeout_s)
        if not wait(lambda: _listens(socket), self.timeout_s):
            raise HostError(
                f"{context}containerd does not listen at {socket}: restart it by hand"
                + (f" ({problem})" if problem else "")
            )


def _socket(effective: Mapping[str, Any]) -> Path:
    return Path(edits.table(effective).get("socket_path") or _NRI_SOCKET)


def _listens(socket: Path) -> bool:
    return containerd.inode(socket) is not None
